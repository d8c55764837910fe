"""What pages read: runs that go on or have ended, decisions, samples, comparisons, and all of it as files."""
