"""Math that several papers share, exact across ranks and small in memory."""
