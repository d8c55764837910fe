"""Pool pages and endpoints: list, single pool, plans, what-if tables, fault injection, and the kill switch."""
