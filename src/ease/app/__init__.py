"""The image classifier for end users: learning, prediction, calibration, export and the HTTP server."""
