"""One published method, one file. Each is found through the entry points `babeltune.methods`."""
