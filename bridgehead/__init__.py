"""What users' own code imports, and the contract that laptop and VM share. Standard library only."""

from bridgehead.checkpoints import Checkpoint
from bridgehead.run import Run, current_run

__version__ = "0.1.0"
__all__ = ["Checkpoint", "Run", "__version__", "current_run"]
