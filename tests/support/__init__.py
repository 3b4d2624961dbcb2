"""What tests share: servers, worlds, models, and Spark's loop without Spark."""
