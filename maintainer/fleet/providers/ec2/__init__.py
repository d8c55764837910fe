"""Provider `ec2`: one instance of Amazon EC2 per node."""
