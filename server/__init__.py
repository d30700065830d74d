"""SkyRL's Tinker server on GPUs: installing it, its configurations, and starting it."""
