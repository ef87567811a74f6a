"""One model with its feed and its actions, for one project and one kernel; views come and go over it."""

from __future__ import annotations

from control_panel.model import PanelModel
from control_panel.pump import Message
from run_control.project import Project


class Engine:
    """`close()` ends the feed."""

    def __init__(self, project: Project) -> None:
        self.model = PanelModel()
        self.project = project

    def act(self, command: Message) -> Message:
        """Do what a person pressed. Returns the ack's members."""
        return {
            "state": "refused",
            "text": f"{command['verb']}: not built yet; use bridgehead in a terminal",
            "line": "",
        }

    def close(self) -> None:
        return
