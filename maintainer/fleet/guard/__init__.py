"""The guard, a pure check of every proposed change; its inputs as data; and permissions to apply and approve."""
