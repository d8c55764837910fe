"""Publishing of weights from one rank or many: copies to the host, exchange of shards, and their transfer."""
