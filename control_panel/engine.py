"""One model with its feed and its actions, for one project and one kernel; views come and go over it."""

from __future__ import annotations

from control_panel.actions import Actions
from control_panel.feed import Feed
from control_panel.model import PanelModel
from control_panel.pump import Message
from run_control.project import Project


class Engine:
    """`close()` ends the feed."""

    def __init__(self, project: Project) -> None:
        self.project = project
        self.model = PanelModel()
        self._actions = Actions(project, on_check=lambda artifact: self._feed.look_at_checks())
        self._feed = Feed(project, self.model, sent=self._actions.sent, checks=self._actions.checks)
        self._feed.look()  # so that the very first snapshot has something to show
        self._feed.start()

    def act(self, command: Message) -> Message:
        """Do what a person pressed. Returns the ack's members."""
        return self._actions.act(command)

    def close(self) -> None:
        self._feed.close()
