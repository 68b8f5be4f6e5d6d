"""The sections of a report, one file each: what it says, its tables and its charts."""
