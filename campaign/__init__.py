"""Commands that try to break the project: failed system calls, fuzzing, and a server under disturbance."""
