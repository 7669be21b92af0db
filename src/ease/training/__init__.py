"""What learns: training loops, random numbers, loading of images, features, exemplars."""
