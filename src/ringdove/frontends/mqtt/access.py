"""Who connects, and which topics are his.

The server's token as password makes an operator, who may do everything. Accounts come with name and
password, with an access key and its secret, or with a certificate whose common name is the
account's. While there is neither a token nor an account, everybody may connect.

What others than operators may do is said by permissions, such as

    send meters/%u/#         publish to these topics
    receive devices/%c/#     subscribe to these topics, or to filters within them

where %u is the user's name and %c the client identifier; or, where there are none, by the roles of
the account on the queues of the topics. A filter with wildcards may match topics of many queues, so
each message is judged again by its topic before it is given to somebody.
"""

from __future__ import annotations

import re
import secrets
from typing import TYPE_CHECKING, Any

from ringdove.controllers.accounts import ALL, AccessKey, may, owner_of
from ringdove.errors import InvalidArgument, PacketRefused
from ringdove.protocol.mqtt.packets import Reason
from ringdove.protocol.mqtt.topics import is_filter, matches

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ringdove.controllers.accounts import Account
    from ringdove.controllers.broker import Broker
    from ringdove.protocol.mqtt.packets import Connect
    from ringdove.protocol.mqtt.rules import Rules

#: Where names go in a permission; what a name says is no such place.
_PLACES = re.compile("%[uc]")

#: Answers about single topics that are remembered for one connection, and characters of a topic
#: for that.
_REMEMBERED_MAX = 1_000
_REMEMBERED_CHARS_MAX = 200


class Permissions:
    """The permissions of a gateway."""

    def __init__(self, texts: Sequence[str] = ()) -> None:
        self._patterns: dict[str, list[str]] = {"send": [], "receive": []}
        for text in texts:
            role, _, pattern = text.partition(" ")
            if role not in self._patterns or not is_filter(pattern.strip()):
                raise InvalidArgument(
                    f"{text!r} is no permission: say 'send meters/%u/#' or 'receive devices/%c/#'."
                )
            self._patterns[role].append(pattern.strip())

    def __bool__(self) -> bool:
        return any(self._patterns.values())

    def of(self, role: str, user: str, client_id: str) -> list[str]:
        """The filters that a client may use in a role."""
        names = {"%u": _level(user), "%c": _level(client_id)}
        return [
            _PLACES.sub(lambda found: names[found[0]], pattern) for pattern in self._patterns[role]
        ]


def _level(name: str) -> str:
    """A name that cannot widen the filter it is put in."""
    return "\0" if not name or any(sign in name for sign in "+#/") else name


class Identity:
    """Somebody who may not do everything."""

    __slots__ = (
        "_key", "_may", "_may_see", "_permissions", "_rules", "account", "checked_s", "client_id",
        "key_id", "name", "unasked",
    )  # fmt: skip

    def __init__(
        self,
        name: str,
        client_id: str,
        permissions: Permissions,
        rules: Rules,
        account: Account | None = None,
        key: AccessKey | None = None,
    ) -> None:
        self.name = name
        self.client_id = client_id
        self._permissions = permissions
        self._rules = rules
        #: What the account was when it was looked at, and the key with which he came, if any.
        self.account = account
        self._key = key or AccessKey("", "", 0, ALL)
        self.key_id = self._key.id
        #: When it was looked at, in seconds of the gateway's clock.
        self.checked_s = 0.0
        #: Whether he was let in because everybody was.
        self.unasked = False
        self._may: dict[str, bool] = {}
        self._may_see: dict[str, bool] = {}

    def renew(self, account: Account, key: AccessKey | None = None) -> None:
        """Go by what the account and the key are now."""
        if account != self.account or (key is not None and key != self._key):
            self.account, self._key = account, key or self._key
            self._may.clear()
            self._may_see.clear()

    def may_send(self, topic: str) -> bool:
        """Whether he may publish to a topic."""
        known = self._may.get(topic)
        return self._remember(self._may, topic, "send") if known is None else known

    def may_see(self, topic: str) -> bool:
        """Whether he may have a message of a topic."""
        known = self._may_see.get(topic)
        return self._remember(self._may_see, topic, "receive") if known is None else known

    def _remember(self, known: dict[str, bool], topic: str, role: str) -> bool:
        found = self._find(topic, role)
        if len(topic) <= _REMEMBERED_CHARS_MAX:
            if len(known) >= _REMEMBERED_MAX:
                known.clear()
            known[topic] = found
        return found

    def may_receive(self, pattern: str) -> bool:
        """Whether he may subscribe to a filter."""
        return self._find(pattern, "receive")

    def _find(self, wanted: str, role: str) -> bool:
        if self._permissions:
            allowed = self._permissions.of(role, self.name, self.client_id)
            return any(_within(wanted, pattern) for pattern in allowed)
        if self.account is None:
            return True
        exact = wanted.partition("+")[0].partition("#")[0]
        queue = self._rules.place(exact).queue if exact else None
        return queue is not None and may(self.account, self._key, owner_of(queue)[0], queue, role)


def _within(wanted: str, pattern: str) -> bool:
    """Whether all that a filter matches is matched by another one."""
    if wanted == pattern:
        return True
    ours, theirs = wanted.split("/"), pattern.split("/")
    for at, level in enumerate(theirs):
        if level == "#":
            return True
        if at == len(ours) or ours[at] == "#" or (ours[at] == "+" and level != "+"):
            return False
        if not matches(level, ours[at]) and level != "+":
            return False
    return len(ours) == len(theirs)


class Doorman:
    """Identifies clients."""

    def __init__(
        self, broker: Broker, token: str | None, permissions: Permissions, rules: Rules
    ) -> None:
        self._accounts = broker.accounts
        self._token = None if token is None else token.encode()
        self._permissions = permissions
        self._rules = rules

    async def is_open(self) -> bool:
        """Whether everybody may connect."""
        return self._token is None and not await self._accounts.configured()

    async def identify(
        self, packet: Connect, client_id: str, certificate: dict[str, Any] | None
    ) -> Identity | None:
        """Who a client is; None for those who may do everything. Raises PacketRefused."""
        if packet.properties and "authentication_method" in packet.properties:
            raise PacketRefused(
                "There is no such authentication method.", Reason.BAD_AUTHENTICATION_METHOD
            )
        password = packet.password or b""
        if self._token is not None and secrets.compare_digest(password, self._token):
            return None
        common_name = _common_name(certificate)
        if common_name:
            return await self._certified(common_name, client_id)
        if packet.username is not None and not await self.is_open():
            return await self._by_password(packet.username, password, client_id)
        if await self.is_open():
            if not self._permissions:
                return None
            somebody = Identity(packet.username or "", client_id, self._permissions, self._rules)
            somebody.unasked = True
            return somebody
        raise PacketRefused(
            "The server asks for a user name and a password.", Reason.BAD_CREDENTIALS
        )

    def is_unasked(self, identity: Identity | None) -> bool:
        """Whether somebody was let in because everybody was; then he stays no longer than that."""
        return self._token is None if identity is None else identity.unasked

    async def is_still(self, identity: Identity) -> bool:
        """Whether somebody may stay; from now on he may do what his account may now."""
        account = identity.account
        if account is None:
            return True
        if identity.key_id:
            found = await self._accounts.find_key(identity.key_id)
            if found is not None:
                identity.renew(*found)
            return found is not None
        now = await self._accounts.maybe_get(account.id)
        if now is None or now.password != account.password:
            return False
        identity.renew(now)
        return True

    async def _certified(self, name: str, client_id: str) -> Identity:
        """Whoever the authority has given a certificate."""
        account = None
        try:
            account = await self._accounts.get(name)
        except InvalidArgument:
            if not self._permissions:
                raise PacketRefused(
                    f"There is no account {name!r}, as the certificate says.",
                    Reason.NOT_AUTHORIZED,
                ) from None
        return Identity(name, client_id, self._permissions, self._rules, account)

    async def _by_password(self, user: str, password: bytes, client_id: str) -> Identity:
        text = password.decode(errors="replace")
        found = await self._accounts.find_key(user)
        if found is not None:
            account, key = found
            if key.active and secrets.compare_digest(password, key.secret.encode()):
                return self._known(account.name, client_id, account, key)
        elif await self._accounts.check_password(user, text):
            account = await self._accounts.get(user)
            return self._known(account.name, client_id, account, None)
        raise PacketRefused("User name or password are wrong.", Reason.BAD_CREDENTIALS)

    def _known(
        self, name: str, client_id: str, account: Account, key: AccessKey | None
    ) -> Identity:
        return Identity(name, client_id, self._permissions, self._rules, account, key)


def _common_name(certificate: dict[str, Any] | None) -> str:
    for names in (certificate or {}).get("subject", ()):
        for name, value in names:
            if name == "commonName":
                return str(value)
    return ""
