"""Work on clusters that run already: Ray jobs, the wheels that they receive, and a check of both."""
