"""What lasts: files that survive a crash, model directories, archives, narrow number formats."""
