"""The door: who asks, by which name, how often, and for which VM. What a key may do is decided here alone."""

from __future__ import annotations

import dataclasses
import math
import time

from aiohttp import web

from bridge import answers
from bridge.answers import Refused
from bridge.audit import Audit
from bridge.auth import Caller, authenticate
from bridge.hosts import Hosts
from bridge.key_records import KeyState
from bridge.keys import KeyStore
from bridge.ledger import Ledger
from bridge.nonces import NonceStore
from bridge.rate import Limiter
from bridge.refusals import Refusals
from bridgehead.errors import PairingError, TransferError

LINGER_S = 30.0  # a rotated key is good for this long after its last VM has used the new one
NEW_VMS_MAX = 64  # of one pairing, alive or new within that time: a stolen key can't fill the ledger with ids
NEW_VMS_WITHIN_S = 3600.0
NEW_VMS_WAIT_S = 60.0
_USE_EVERY_S = 30.0  # when a key was last used is noted this often


class Permits:
    """`admit` and `next_key` on the event loop; `bind` and `settle` on a thread, since they may fsync."""

    def __init__(self, keys: KeyStore, ledger: Ledger, nonces: NonceStore, audit: Audit) -> None:
        self.hosts = Hosts()
        self.refusals = Refusals(audit)
        self.project_allows_sh = True  # as the project file last said
        self._keys = keys
        self._ledger = ledger
        self._nonces = nonces
        self._audit = audit
        self._limiter = Limiter()
        self._bound: dict[str, str] = {}  # VM → key id, as the ledger has it
        self._used: dict[str, float] = {}
        self._noted: dict[str, float] = {}

    def check_host(self, request: web.BaseRequest) -> None:
        """Raises Refused(421) without a body: it has taken another one's name for ours, or has none."""
        if len(request.headers.getall("Host", ())) != 1 or not self.hosts.knows(request.headers.get("Host")):
            self.refusals.note("foreign host")
            raise Refused(421, None, close=True)

    def admit(self, request: web.BaseRequest) -> Caller:
        """Raises Refused: 401 to whoever is not paired, 429 to a key that asks too often."""
        try:
            caller = authenticate(request, self._keys, self._nonces)
        except Refused:
            self.refusals.note("unsigned" if "Signature" not in request.headers else "wrong signature")
            raise
        item = self._keys.get(caller.key_id)
        caller = dataclasses.replace(caller, family=item.family if item is not None else caller.key_id)
        self._used[caller.key_id] = time.time()
        vms = sum(1 for key_id in self._bound.values() if key_id == caller.key_id)
        wait_s = self._limiter.wait_s(caller.key_id, vms)
        if wait_s:
            self.refusals.note("too often")
            error = TransferError("this key asks too often", hint=f"wait {wait_s:.2f} s")
            headers = {"Retry-After": str(math.ceil(wait_s))}
            raise Refused(429, error, headers=headers, close=request.can_read_body)
        return caller

    def is_good(self, caller: Caller) -> bool:
        """Whether its key has been revoked since the request came in."""
        return self._keys.key(caller.key_id) is not None

    def is_bound(self, caller: Caller, vm_id: str) -> bool:
        return self._bound.get(vm_id) == caller.key_id

    def bind(self, caller: Caller, vm_id: str) -> None:
        """Give the VM to the caller's pairing when it is nobody's yet.

        Raises Refused: 403 when it is another's, 429 when the pairing has so many that its key seems to be stolen.
        """
        item = self._keys.get(caller.key_id)
        if item is None:
            raise answers.stranger()
        before = self._ledger.vm_key(vm_id)
        if before is not None and not self._keys.may_follow(before.family, item):
            self.refusals.note("another pairing's VM")
            hint = "run the cell with the code that this VM was paired with; the laptop has: bridgehead keys list"
            raise Refused(403, PairingError(f"{vm_id} belongs to another pairing", hint=hint), close=True)
        if before is None and self._ledger.fresh_vms(item.family, NEW_VMS_WITHIN_S) >= NEW_VMS_MAX:
            raise self._too_many_vms()
        if before is not None and before.family == item.family and item.state is KeyState.ROTATING:
            return  # a request that was under way: the VM has the new key already, or will
        if before is None or before.key_id != item.id:
            self._ledger.bind_vm(vm_id, item.id, item.family, allow_sh=item.allow_sh)
            event = "key first used" if before is None or before.family != item.family else "key rotated"
            self._audit.append([{"event": event, "key_id": item.id, "vm_id": vm_id}])
        self._bound[vm_id] = item.id

    def _too_many_vms(self) -> Refused:
        self.refusals.note("too many VMs")
        error = TransferError(
            f"{NEW_VMS_MAX} VMs of this pairing are alive, or new within the last hour: no more are taken now",
            hint="when they are not all yours, the key has leaked: bridgehead keys list, then keys revoke; else use"
            " another pairing for more: bridgehead keys new",
        )
        return Refused(429, error, headers={"Retry-After": str(math.ceil(NEW_VMS_WAIT_S))}, close=True)

    def next_key(self, caller: Caller) -> dict[str, str] | None:
        """What the VM needs to derive its next key, when its present one is being rotated."""
        following = self._keys.next_of(caller.key_id)
        if following is None:
            return None
        return {"kid": following.id, "salt": answers.base64_text(following.salt)}

    def settle(self) -> None:
        """To be called about once a second: end rotated keys that nobody needs, and write down what was counted."""
        now = time.time()
        for item in self._keys.all():
            if item.state is KeyState.ROTATING and (not item.usable or self._is_left(item.id, item.family, now)):
                if self._keys.end(item.id):
                    self._audit.append([{"event": "key ended", "key_id": item.id}])
        for key_id, at in list(self._used.items()):
            if at - self._noted.get(key_id, 0.0) > _USE_EVERY_S:
                self._noted[key_id] = at
                self._ledger.note_key_use(key_id)
        self._ledger.heed_pairings(self._keys.pairings())
        self.refusals.flush()

    def _is_left(self, key_id: str, family: str, now: float) -> bool:
        """Whether every VM of the pairing that may still come has used a newer key, and has for a while."""
        vms = [vm for vm in self._ledger.vm_keys() if vm.family == family and vm.vm_state not in ("gone", "lost")]
        return bool(vms) and all(vm.key_id != key_id and now - vm.since > LINGER_S for vm in vms)
