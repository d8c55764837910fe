"""Node pages and endpoints: table, map, single node and drains."""
