"""The local engine: SkyRL's Tinker API and engine on a backend of ours, PyTorch on this machine's CPU."""
