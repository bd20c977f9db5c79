"""How one message is sent: only to an allowed address, signed, and with every response classified."""

from __future__ import annotations

import base64
import socket
import ssl
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from standardwebhooks import Webhook as Verifier
from standardwebhooks import WebhookVerificationError
from tests.server.alerts.conftest import HEAD, service

from leakline_server.alerts.formats import Message
from leakline_server.alerts.sending.address_check import (
    AddressRefused,
    AddressUnknown,
    CheckedAddress,
    Network,
    Resolver,
    WebhookUrl,
    check,
    networks,
    parse,
    resolve_by_system,
)
from leakline_server.alerts.sending.http_post import Delivered, GiveUp, Outcome, TryAgain, post
from leakline_server.alerts.sending.send_message import Outgoing, send
from leakline_server.alerts.sending.signing import check_secret, make_secret, signed_headers

PUBLIC = "93.184.216.34"


def resolving(*addresses: str) -> Callable[[str], Sequence[str]]:
    return lambda _host: addresses


def public(_host: str) -> Sequence[str]:
    return [PUBLIC]


# Spellings that are refused even if every network is allowed: one or two for each reason.
NEVER_A_HOST = [
    "http://2130706433/", "http://0x7f.0.0.1/", "http://127.1/", "http://127.0.0.01/", "http://0x/", "http://256.0.0.1/",
    "http://[::ffff:7f00:1/", "http://[]/", "http://[fe80::1%25eth0]/", "http://[::1]evil.example/", "http:///path",
    "http://.example/", "http://a..b/", "http://-a.example/", "http://example.com\\@127.0.0.1/",
    "http://user:secret@example.com/", "http://@example.com/", "http://ex\u0430mple.com/",
    "http://example.com/\r\nHost: internal", "http://example.com/ path", "http://example.com:99999/",
    "http://example.com:port/", "file:///etc/passwd", "//example.com/", "", "http:example.com",
    "http://" + "a" * 64 + ".example/", "http://" + "a." * 127 + "example/", "http://example.com/" + "a" * 2_048,
]  # fmt: skip
# Addresses in their usual spelling that are not public.
NEVER_PUBLIC = [
    "127.0.0.1", "127.255.255.254", "0.0.0.0", "0.1.2.3", "10.0.0.1", "10.255.255.255", "172.16.0.1", "172.31.255.255",
    "192.168.1.1", "169.254.169.254", "169.254.0.1", "100.64.0.1", "100.127.255.255", "192.0.0.8", "192.0.2.1",
    "198.51.100.7", "203.0.113.9", "198.18.0.1", "198.19.255.255", "192.88.99.1", "224.0.0.1", "239.255.255.255",
    "240.0.0.1", "255.255.255.255", "::", "::1", "::127.0.0.1", "::ffff:127.0.0.1", "::ffff:10.0.0.1",
    "::ffff:169.254.169.254", "::ffff:0:127.0.0.1", "fe80::1", "febf::1", "fec0::1", "fc00::1", "fd12:3456::1",
    "ff02::1", "2001:db8::1", "3fff::1", "64:ff9b::7f00:1", "64:ff9b:1::a00:1", "2002:7f00:1::", "2001::1",
    "100::1", "5f00::1",
]  # fmt: skip


@pytest.mark.parametrize("url", NEVER_A_HOST)
def test_an_unusual_spelling_is_refused_before_any_lookup(url: str) -> None:
    def never(_host: str) -> Sequence[str]:
        raise AssertionError("looked up")

    with pytest.raises(AddressRefused):
        check(url, networks("0.0.0.0/0,::/0"), never)


@pytest.mark.parametrize("address", NEVER_PUBLIC)
def test_private_addresses_and_names_that_resolve_to_them_are_refused(address: str) -> None:
    literal = f"[{address}]" if ":" in address else address
    with pytest.raises(AddressRefused, match="LEAKLINE_WEBHOOK_ALLOW"):
        check(f"https://{literal}/hook")
    with pytest.raises(
        AddressRefused, match=r"hook\.example resolves to .* LEAKLINE_WEBHOOK_ALLOW"
    ):
        check("https://hook.example/", resolve=resolving(address))


def test_the_refusal_proposes_a_value_that_works() -> None:
    with pytest.raises(AddressRefused) as refused:
        check("http://10.1.2.3:8080/")
    proposed = str(refused.value).rpartition("LEAKLINE_WEBHOOK_ALLOW=")[2]
    assert check("http://10.1.2.3:8080/", networks(proposed)).addresses == ("10.1.2.3",)


def test_a_mapped_address_is_allowed_by_its_real_network() -> None:
    assert check("http://[::ffff:127.0.0.1]/", networks("127.0.0.0/8")).addresses == ("127.0.0.1",)
    with pytest.raises(AddressRefused):
        check("http://[::ffff:127.0.0.1]/", networks("::/0"))


@pytest.mark.parametrize("port", [0, 22, 1023])
def test_a_port_of_another_service_is_refused_unless_the_network_is_allowed(port: int) -> None:
    with pytest.raises(AddressRefused, match=f"port {port}"):
        check(f"http://hook.example:{port}/", resolve=public)
    allowed = networks(f"{PUBLIC}/32")
    assert check(f"http://hook.example:{port}/", allowed, public).url.port == port


def test_a_name_without_an_address_is_a_temporary_failure() -> None:
    def nothing(_host: str) -> Sequence[str]:
        raise OSError("Name or service not known")

    with pytest.raises(AddressUnknown, match=r"hook\.example cannot be looked up"):
        check("https://hook.example/", resolve=nothing)
    with pytest.raises(AddressUnknown, match="no address"):
        check("https://hook.example/", resolve=resolving())
    with pytest.raises(AddressUnknown):
        check("https://hook.example/", resolve=resolving("not an address"))


def test_a_resolver_that_does_not_answer_times_out() -> None:
    answered = threading.Event()

    def silent(_host: str) -> Sequence[str]:
        answered.wait(20)
        return [PUBLIC]

    with pytest.raises(AddressUnknown, match="took longer than"):
        check("https://hook.example/", resolve=silent, resolve_seconds=0.05)
    answered.set()


@pytest.mark.parametrize(
    "address", ["1.1.1.1", "172.15.0.1", "172.32.0.1", "100.63.0.1", "2606:4700:4700::1111"]
)
def test_a_public_address_is_allowed(address: str) -> None:
    assert check("https://hook.example/", resolve=resolving(address)).addresses == (address,)


def test_path_and_query_are_kept_and_never_shown() -> None:
    url = parse("https://Hook.Example:8443/services/T0/B0/secret?token=x#part")
    assert url.target == "/services/T0/B0/secret?token=x"
    assert url.origin == "https://hook.example:8443"
    assert "secret" not in repr(url)


@pytest.mark.parametrize("text", ["127.0.0.1/8", "everything"])
def test_an_invalid_network_is_named(text: str) -> None:
    with pytest.raises(ValueError, match=text.split("/")[0]):
        networks(text)


STAND_IN = "127.0.0.2"
ALLOWED = networks(f"{STAND_IN}/32")
# The addresses of the test's names; no other name has an address.
NAMES = {
    "public.example": [STAND_IN], "private.example": ["127.0.0.1"], "both.example": [STAND_IN, "127.0.0.1"],
    "both-the-other-way.example": ["127.0.0.1", STAND_IN], "six.example": ["::1"],
    "both-six.example": [STAND_IN, "::1"],
    "mapped.example": ["::ffff:127.0.0.1"], "nat64.example": ["64:ff9b::7f00:1"], "zone.example": ["fe80::1%lo"],
    "metadata.google.internal": ["169.254.169.254"], "wireserver.example": ["168.63.129.16"],
    "any.example": ["0.0.0.0"],
    "127.0.0.1.nip.example": ["127.0.0.1"], "7f000001.rebind.example": ["127.0.0.1"], "router.example": ["192.168.0.1"],
    "database": ["10.0.0.7"], "xn--lclhst-0ta3o.example": ["127.0.0.1"], "ten.example": ["10.1.1.1", STAND_IN],
}  # fmt: skip
# PORT is replaced by the port of the victim and the stand-in.
HOSTILE = [
    # 127.0.0.1 in every spelling that some resolver takes
    "http://2130706433:PORT/", "http://017700000001:PORT/", "http://0x7f000001:PORT/", "http://0x7F000001:PORT/",
    "http://127.1:PORT/", "http://127.0.1:PORT/", "http://127.65793:PORT/", "http://0177.0.0.1:PORT/",
    "http://0x7f.0.0.1:PORT/", "http://0x7f.1:PORT/", "http://0177.0x0.0.1:PORT/", "http://127.0.0.0x1:PORT/",
    "http://127.0.0.01:PORT/", "http://00127.0.0.1:PORT/", "http://127.0.0.1.:PORT/", "http://127.0.0.1..:PORT/",
    "http://0:PORT/", "http://0.0.0.0:PORT/", "http://00000000:PORT/", "http://127.127.127.127:PORT/",
    "http://4294967296:PORT/", "http://127.0.0.257:PORT/", "http://127%2e0%2e0%2e1:PORT/", "http://%31%32%37.0.0.1:PORT/",
    "http://①②⑦.⓪.⓪.①:PORT/", "http://１２７.0.0.1:PORT/", "http://١٢٧.0.0.1:PORT/", "http://127。0。0。1:PORT/",
    "http://127．0．0．1:PORT/", "http://127｡0｡0｡1:PORT/", "http://ⓛocalhost:PORT/", "http://loc\u00adalhost:PORT/",
    # the same inside IPv6
    "http://[::1]:PORT/", "http://[::]:PORT/", "http://[0:0:0:0:0:0:0:1]:PORT/", "http://[::ffff:127.0.0.1]:PORT/",
    "http://[::ffff:7f00:1]:PORT/", "http://[::FFFF:7F00:0001]:PORT/", "http://[::127.0.0.1]:PORT/", "http://[::7f00:1]:PORT/",
    "http://[2002:7f00:1::]:PORT/", "http://[2002:7f00:1::1]:PORT/", "http://[64:ff9b::127.0.0.1]:PORT/",
    "http://[64:ff9b::7f00:1]:PORT/", "http://[64:ff9b:1::7f00:1]:PORT/", "http://[::ffff:0:127.0.0.1]:PORT/",
    "http://[2001:0:7f00:1::]:PORT/", "http://[fe80::1%25lo]:PORT/", "http://[fe80::1%lo]:PORT/", "http://[::1%25lo]:PORT/",
    "http://[::1]:PORT:PORT/", "http://[::1/", "http://[::1]example:PORT/", "http://[v1.7f]:PORT/", "http://[127.0.0.1]:PORT/",
    "http://::1:PORT/", "http://[::ffff:169.254.169.254]/",
    # metadata services of clouds; NEVER_PUBLIC has the other special addresses
    "http://169.254.169.254/latest/meta-data/", "http://[fd00:ec2::254]/latest/", "http://100.100.100.200/latest/",
    "http://192.0.0.192/opc/v2/", "http://168.63.129.16/machine?comp=goalstate", "http://metadata.google.internal/",
    "http://wireserver.example/",
    # names
    "http://localhost:PORT/", "http://LOCALHOST:PORT/", "http://localhost.:PORT/", "http://hook.localhost:PORT/",
    "http://localhost.localdomain:PORT/", "http://ip6-localhost:PORT/", "http://private.example:PORT/",
    "http://PRIVATE.example.:PORT/", "http://both.example:PORT/", "http://both-the-other-way.example:PORT/",
    "http://six.example:PORT/", "http://both-six.example:PORT/", "http://mapped.example:PORT/", "http://nat64.example:PORT/",
    "http://zone.example:PORT/", "http://any.example:PORT/", "http://127.0.0.1.nip.example:PORT/",
    "http://7f000001.rebind.example:PORT/", "http://xn--lclhst-0ta3o.example:PORT/", "http://router.example/",
    "http://database:5432/", "http://ten.example:PORT/", "http://nowhere.example:PORT/",
    # spellings that a parser may read in two ways
    "http://public.example:PORT@127.0.0.1:PORT/", "http://127.0.0.1:PORT@public.example:PORT/", "http://u:p@public.example:PORT/",
    "http://@127.0.0.1:PORT/", "http://public.example\\@127.0.0.1:PORT/", "http://127.0.0.1:PORT\\@public.example/",
    "http://127.0.0.1:PORT#@public.example/", "http://127.0.0.1:PORT?@public.example/", "http://127.0.0.1:PORT;public.example/",
    "http://public.example%00.127.0.0.1:PORT/", "http://public.example%2f@127.0.0.1:PORT/", "http:127.0.0.1:PORT/",
    "http:/127.0.0.1:PORT/", "http:///127.0.0.1:PORT/", "http:////127.0.0.1:PORT/", "//127.0.0.1:PORT/",
    "127.0.0.1:PORT",
    "http://127.0.0.1\t:PORT/", "http://127.0.0.1\n:PORT/", " http://127.0.0.1:PORT/", "\x00http://127.0.0.1:PORT/",
    "http://public.example:PORT\r\nHost: 127.0.0.1:PORT/", "http://public.example:PORT/ HTTP/1.1\r\nX: y",
    # schemes and ports
    "file:///etc/passwd", "ftp://127.0.0.1:PORT/", "gopher://127.0.0.1:PORT/_POST", "dict://127.0.0.1:PORT/",
    "unix:///tmp/s",
    "ws://127.0.0.1:PORT/", "ldap://127.0.0.1:PORT/", "jar:http://127.0.0.1:PORT!/", "http+unix://%2ftmp%2fs/",
    "javascript:1",
    "http://1.1.1.1:22/", "http://1.1.1.1:25/", "http://1.1.1.1:0/", "http://1.1.1.1:65536/", "http://1.1.1.1:-1/",
    "http://1.1.1.1:８０/", "http://1.1.1.1:+80/", "http://1.1.1.1:0x50/", "http://1.1.1.1:8 0/",
]  # fmt: skip


@dataclass
class Watched:
    """``connected``: all addresses that this process connected to; ``reached`` counts connections to the victim."""

    port: int
    stand_in: socket.socket
    victims: list[socket.socket]
    connected: list[str] = field(default_factory=list)

    def reached(self) -> int:
        """Count the connections waiting at the victim; the kernel accepts them before ``connect`` returns."""
        count = 0
        for listener in self.victims:
            while True:
                try:
                    listener.accept()[0].close()
                except BlockingIOError:
                    break
                count += 1
        return count


_watching: list[list[str]] = []


def _note_connections(event: str, arguments: tuple[Any, ...]) -> None:
    if event == "socket.connect" and _watching and isinstance(arguments[1], tuple):
        _watching[-1].append(str(arguments[1][0]))


# An audit hook stays until the process ends, so there is only one.
sys.addaudithook(_note_connections)


@pytest.fixture
def watched() -> Iterator[Watched]:
    found = _listening()
    _watching.append(found.connected)
    yield found
    _watching.remove(found.connected)
    for listener in (found.stand_in, *found.victims):
        listener.close()


def _listening() -> Watched:
    """Listen on one port that is free on all addresses."""
    while True:
        stand_in = socket.create_server((STAND_IN, 0))
        port = stand_in.getsockname()[1]
        try:
            victims = [socket.create_server(("127.0.0.1", port))]
        except OSError:
            stand_in.close()
            continue
        # Without IPv6 on this machine, nothing can be reached there either.
        with suppress(OSError):
            victims.append(socket.create_server(("::1", port), family=socket.AF_INET6))
        for listener in victims:
            listener.setblocking(False)
        return Watched(port, stand_in, victims)


def resolve(host: str) -> Sequence[str]:
    """Resolve NAMES, and resolve the names of this machine with its own resolver."""
    if "localhost" in host:
        return resolve_by_system(host)
    if host.lower() not in NAMES:
        raise OSError("Name or service not known")
    return NAMES[host.lower()]


def attempt(
    url: str, resolver: Resolver = resolve, allowed: Sequence[Network] = ALLOWED
) -> Outcome:
    def quickly(to: CheckedAddress, body: bytes, headers: Any) -> Outcome:
        return post(to, body, headers, total_seconds=2)

    message = Message("incident.confirmed", 0.0, {"link": "/"}, "https://leakline.example")
    outgoing = Outgoing("msg_1", url, "standard", make_secret(), message)
    return send(outgoing, allowed, time.time(), resolve=resolver, by=quickly)


def answer_once(
    listener: socket.socket, answer: bytes = b"HTTP/1.1 204 No Content\r\n\r\n"
) -> threading.Thread:
    def serve() -> None:
        connection, _ = listener.accept()
        with connection:
            connection.settimeout(5)
            received = b""
            while not received.endswith(b"}") and (piece := connection.recv(65_536)):
                received += piece
            connection.sendall(answer)

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    return thread


@pytest.mark.parametrize("url", HOSTILE)
def test_a_hostile_address_reaches_nothing(url: str, watched: Watched) -> None:
    outcome = attempt(url.replace("PORT", str(watched.port)))
    assert isinstance(outcome, (GiveUp, TryAgain))
    assert outcome.status is None
    assert watched.connected == []
    assert watched.reached() == 0


def test_the_watch_sees_a_connection(watched: Watched) -> None:
    answering = answer_once(watched.stand_in)
    outcome = attempt(f"http://public.example:{watched.port}")
    answering.join(5)
    assert isinstance(outcome, Delivered)
    assert watched.connected == [STAND_IN]
    socket.create_connection(("127.0.0.1", watched.port)).close()
    assert watched.reached() == 1
    assert watched.connected == [STAND_IN, "127.0.0.1"]


@pytest.mark.parametrize(
    "later", [["127.0.0.1"], ["::1"], ["127.0.0.1", STAND_IN], ["169.254.169.254"]]
)
def test_dns_rebinding_after_the_check_gains_nothing(watched: Watched, later: list[str]) -> None:
    asked = []

    def rebinding(host: str) -> Sequence[str]:
        asked.append(host)
        return [STAND_IN] if len(asked) == 1 else later

    answering = answer_once(watched.stand_in)
    first = attempt(f"http://rebind.example:{watched.port}/", rebinding)
    answering.join(5)
    again = attempt(f"http://rebind.example:{watched.port}/", rebinding)
    assert isinstance(first, Delivered)
    assert isinstance(again, GiveUp)
    assert asked == ["rebind.example", "rebind.example"]
    assert watched.connected == [STAND_IN]
    assert watched.reached() == 0


@pytest.mark.parametrize(
    ("status", "header"),
    [
        (300, "Refresh: 0; url=http://127.0.0.1:PORT/"), (301, "Location: http://127.0.0.1:PORT/"),
        (302, "Location: //127.0.0.1:PORT/"), (303, "Location: http://127.0.0.1:PORT/"),
        (307, "Location: http://[::1]:PORT/"), (308, "Location: http://localhost:PORT/"),
        (421, 'Alt-Svc: h2="127.0.0.1:PORT"; ma=60'),
    ],
)  # fmt: skip
def test_a_redirect_is_not_followed(watched: Watched, status: int, header: str) -> None:
    led = header.replace("PORT", str(watched.port))
    answer = f"HTTP/1.1 {status} Go\r\n{led}\r\nContent-Length: 0\r\n\r\n"
    answering = answer_once(watched.stand_in, answer.encode())
    outcome = attempt(f"http://public.example:{watched.port}/")
    answering.join(5)
    assert isinstance(outcome, TryAgain)
    assert outcome.status == status
    assert ("redirects are not followed" in outcome.reason) == (status < 400)
    assert watched.connected == [STAND_IN]
    assert watched.reached() == 0


def test_a_proxy_of_the_environment_is_not_used(
    watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("http_proxy", "https_proxy", "all_proxy"):
        for spelled in (name, name.upper()):
            monkeypatch.setenv(spelled, f"http://127.0.0.1:{watched.port}")
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    answering = answer_once(watched.stand_in)
    outcome = attempt(f"http://public.example:{watched.port}/")
    answering.join(5)
    assert isinstance(outcome, Delivered)
    assert watched.connected == [STAND_IN]
    assert watched.reached() == 0


def test_a_refused_connection_is_not_retried_at_an_unchecked_address(watched: Watched) -> None:
    watched.stand_in.close()
    outcome = attempt(f"http://public.example:{watched.port}/")
    assert isinstance(outcome, TryAgain)
    assert watched.connected == [STAND_IN]
    assert watched.reached() == 0


# -- one POST ----------------------------------------------------------------------------------------------

LOOPBACK = networks("127.0.0.0/8")
# Self-signed for the name hook.example, valid for a hundred years, with its private key.
CERTIFICATE = Path(__file__).with_name("hook.example.pem")


def post_to(url: str, **more: Any) -> Outcome:
    return post(check(url, LOOPBACK), b"{}", {}, **more)


def test_addresses_are_tried_in_turn_and_the_name_is_only_a_header(receiver: Any) -> None:
    port = int(receiver.url.split(":")[2].split("/")[0])
    # This name has no address anywhere (RFC 2606), and nothing listens at the first address.
    checked = CheckedAddress(
        WebhookUrl(False, "hook.invalid", port, "/hook"), ("127.0.0.2", "127.0.0.1")
    )
    assert isinstance(post(checked, b"{}", {}), Delivered)
    assert receiver.received[0].headers["host"] == f"hook.invalid:{port}"


@pytest.mark.parametrize(
    ("pieces", "every_seconds", "outcome", "said"),
    [
        ([HEAD + b"\r\n", *[b"a" * 65_536] * 400], 0, Delivered, ""),
        ([HEAD + b"Transfer-Encoding: chunked\r\n\r\n-5\r\nxx"], 0, Delivered, ""),
        ([HEAD, *[b"X-%d: " % i + b"a" * 16_000 + b"\r\n" for i in range(400)]], 0, TryAgain, ""),
        ([HEAD + b"X: ", *[b"a"] * 500], 0.02, TryAgain, "no answer within"),
        ([b"<script>alert(1)</script>\r\n\r\n"], 0, TryAgain, "not HTTP"),
        ([], 0, TryAgain, ""),
    ],
    ids=["endless body", "length of no sense", "endless headers", "a byte at a time", "no HTTP", "nothing"],
)  # fmt: skip
def test_an_answer_is_bounded_in_time_and_memory_and_not_repeated(
    pieces: list[bytes], every_seconds: float, outcome: type, said: str
) -> None:
    sent_bytes, pause = [0], threading.Event()

    def answer(connection: socket.socket) -> None:
        for piece in pieces:
            connection.sendall(piece)
            sent_bytes.append(len(piece))
            pause.wait(every_seconds)

    started = time.monotonic()
    with service(answer) as place:
        found = post_to(f"http://{place}/", total_seconds=0.4 if every_seconds else 5)
    assert isinstance(found, outcome)
    assert time.monotonic() - started < 5
    if len(pieces) > 100:
        assert sum(sent_bytes) < 0.9 * sum(map(len, pieces))
    if isinstance(found, TryAgain):
        assert said in found.reason and "script" not in found.reason


def test_a_refused_connection_is_retried() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    outcome = post_to(f"http://127.0.0.1:{port}/")
    assert isinstance(outcome, TryAgain)
    assert outcome.status is None
    assert "refused" in outcome.reason


@pytest.mark.parametrize(
    ("header", "seconds"),
    [(None, None), ("7", 7.0), ("0", 0.0), ("999999999999", 600.0), ("-5", None), ("soon", None), ("", None),
     ("Wed, 21 Oct 2015 07:28:00 GMT", 0.0), ("Fri, 01 Jan 2999 00:00:00 GMT", 600.0),
     ("Mon, 01 Jan 99999999999999999999 00:00:00 GMT", None),
     ("Mon, 01 Jan 2029 00:00:00 +99999999999999999999", None)],
)  # fmt: skip
def test_a_requested_wait_is_respected_within_bounds(
    receiver: Any, header: str | None, seconds: float | None
) -> None:
    receiver.answers = [(503, {} if header is None else {"Retry-After": header})]
    outcome = post_to(receiver.url)
    assert isinstance(outcome, TryAgain)
    assert (outcome.status, outcome.wait_seconds) == (503, seconds)


def test_only_410_gone_is_final(receiver: Any) -> None:
    for status in (400, 404, 429, 500):
        receiver.answers = [status]
        assert isinstance(post_to(receiver.url), TryAgain)
    receiver.answers = [410]
    outcome = post_to(receiver.url)
    assert isinstance(outcome, GiveUp)
    assert outcome.disable


@pytest.mark.parametrize("status", [200, 204])
def test_any_success_is_a_delivery_with_its_time(receiver: Any, status: int) -> None:
    receiver.answers = [status]
    outcome = post(check(receiver.url, LOOPBACK), "{ü}".encode(), {"webhook-id": "msg_1"})
    assert isinstance(outcome, Delivered)
    assert outcome.status == status
    assert 0 < outcome.seconds < 5
    (received,) = receiver.received
    assert received.body == "{ü}".encode()
    assert received.headers["webhook-id"] == "msg_1"


@pytest.fixture
def tls_port() -> Iterator[int]:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(CERTIFICATE)

    def serve(listener: socket.socket) -> None:
        while True:
            try:
                with context.wrap_socket(listener.accept()[0], server_side=True) as connection:
                    # Closing before everything was read resets the connection, and the response may be lost.
                    received = b"-"
                    while received and not received.endswith(b"{}"):
                        received = connection.recv(65_536)
                    connection.sendall(b"HTTP/1.1 204 No Content\r\n\r\n")
            except ssl.SSLError:
                continue
            except OSError:
                return

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=serve, args=(listener,), daemon=True).start()
        yield listener.getsockname()[1]
        listener.shutdown(socket.SHUT_RDWR)


@pytest.mark.parametrize(
    ("host", "trusted", "accepted"),
    [("hook.example", True, True), ("other.example", True, False), ("hook.example", False, False)],
)
def test_a_certificate_must_be_trusted_and_match_the_name(
    tls_port: int, host: str, trusted: bool, accepted: bool
) -> None:
    checked = CheckedAddress(WebhookUrl(True, host, tls_port, "/"), ("127.0.0.1",))
    outcome = post(checked, b"{}", {}, ca_file=CERTIFICATE if trusted else None)
    assert isinstance(outcome, Delivered) == accepted
    assert accepted or outcome.reason.startswith("TLS: ")


# -- signatures --------------------------------------------------------------------------------------------

BODY = '{"type":"incident.confirmed","data":{"name":"Füllstand"}}'.encode()


def secret_of(size: int) -> str:
    return "whsec_" + base64.b64encode(bytes(size)).decode()


def test_the_signature_follows_the_specification() -> None:
    # The example of the Standard Webhooks reference libraries.
    headers = signed_headers(
        "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw",
        "msg_p5jXN8AQM9LWM0D4loKWxJek",
        1614265330,
        b'{"test": 2432232314}',
    )
    assert headers["webhook-signature"] == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="


@pytest.mark.parametrize(
    "secret",
    [
        "", "whsec_", "password", "whsec_" + "A" * 16, "whsec_" + "A" * 100, "whsec_ÄÄÄÄ",
        # As long as a secret, but with spaces, which base64 does not have.
        "whsec_" + "AAAA " * 12, secret_of(23), secret_of(65),
    ],
)  # fmt: skip
def test_a_malformed_secret_is_refused_without_being_repeated(secret: str) -> None:
    with pytest.raises(ValueError, match="24 to 64") as refused:
        check_secret(secret)
    assert secret in ("", "whsec_") or secret not in str(refused.value)


def test_a_secret_has_24_to_64_bytes_and_a_generated_one_32() -> None:
    for size in (24, 64):
        assert check_secret(secret_of(size)) == secret_of(size)
    secret = make_secret()
    assert check_secret(secret) == secret
    assert len(base64.b64decode(secret.removeprefix("whsec_"))) == 32
    assert make_secret() != secret


def test_during_a_rotation_both_secrets_sign_and_either_verifies() -> None:
    old, new, now = make_secret(), make_secret(), time.time()
    headers = signed_headers(new, "msg_1", now, BODY, previous=old)
    newest, _ = headers["webhook-signature"].split(" ")
    assert newest == signed_headers(new, "msg_1", now, BODY)["webhook-signature"]
    for secret in (old, new):
        assert Verifier(secret).verify(BODY, headers)["data"]["name"] == "Füllstand"
    with pytest.raises(WebhookVerificationError):
        Verifier(make_secret()).verify(BODY, headers)
