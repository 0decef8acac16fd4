"""The `alpo-pipeline` command: jobs over a log that run on Spark."""
