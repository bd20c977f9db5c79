"""A webhook address leads only where the server's operator said it may, however it is spelled."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

import pytest

from leakline_server.alerts.address import AddressRefused, AddressUnknown, check, networks, parse

PUBLIC = "93.184.216.34"


def resolving(*addresses: str) -> Callable[[str], Sequence[str]]:
    return lambda _host: addresses


def public(_host: str) -> Sequence[str]:
    return [PUBLIC]


# Spellings that must be refused even if the resolver says that the name is public.
NEVER_A_HOST = [
    "http://2130706433/", "http://017700000001/", "http://0x7f000001/", "http://0x7f.0.0.1/", "http://127.1/",
    "http://127.0.1/", "http://0177.0.0.1/", "http://127.0.0.01/", "http://0/", "http://1/", "http://0x/",
    "http://256.0.0.1/", "http://127.0.0.1.0x1/", "http://4294967296/", "http://[::ffff:7f00:1/", "http://[]/",
    "http://[fe80::1%25eth0]/", "http://[::1]evil.example/", "http://[v1.fe80]/", "http:///path", "http://", "http://./",
    "http://.example/", "http://a..b/", "http://-a.example/", "http://exa mple/", "http://example.com\\@127.0.0.1/",
    "http://user@example.com/", "http://user:secret@example.com/", "http://127.0.0.1@example.com/", "http://@example.com/",
    "http://example.com@127.0.0.1/", "http://ex\u0430mple.com/", "http://①②⑦.⓪.⓪.①/", "http://127。0。0。1/",
    "http://example.com/\r\nHost: internal", "http://example.com/\tpath", "http://example.com/ path", " http://example.com/",
    "http://example.com:99999/", "http://example.com:port/", "http://example.com:-1/", "file:///etc/passwd", "ftp://example.com/",
    "gopher://example.com/", "//example.com/", "example.com", "", "javascript:alert(1)", "http:example.com",
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
def test_a_strange_spelling_is_refused_before_anything_is_looked_up(url: str) -> None:
    def never(_host: str) -> Sequence[str]:
        raise AssertionError("looked up")

    with pytest.raises(AddressRefused):
        check(url, networks("0.0.0.0/0,::/0"), never)


@pytest.mark.parametrize("address", NEVER_PUBLIC)
def test_an_address_that_is_not_public_is_refused_and_the_setting_named(address: str) -> None:
    literal = f"[{address}]" if ":" in address else address
    with pytest.raises(AddressRefused, match="LEAKLINE_WEBHOOK_ALLOW"):
        check(f"https://{literal}/hook")


@pytest.mark.parametrize("address", NEVER_PUBLIC)
def test_a_name_that_leads_there_is_refused_too(address: str) -> None:
    with pytest.raises(AddressRefused, match=r"hook\.example leads to .* LEAKLINE_WEBHOOK_ALLOW"):
        check("https://hook.example/", resolve=resolving(address))


def test_one_private_address_among_public_ones_is_enough_to_refuse() -> None:
    with pytest.raises(AddressRefused, match=r"10\.0\.0\.5"):
        check("https://hook.example/", resolve=resolving(PUBLIC, "10.0.0.5"))


def test_a_name_that_changes_after_the_check_gains_nothing() -> None:
    answers = iter([[PUBLIC], ["127.0.0.1"]])

    checked = check("https://hook.example/", resolve=lambda _host: next(answers))

    assert checked.addresses == (PUBLIC,)
    assert len(list(answers)) == 1, "the name was looked up more than once"


def test_the_refusal_proposes_a_value_that_works() -> None:
    with pytest.raises(AddressRefused) as refused:
        check("http://10.1.2.3:8080/")
    proposed = str(refused.value).rpartition("LEAKLINE_WEBHOOK_ALLOW=")[2]
    assert check("http://10.1.2.3:8080/", networks(proposed)).addresses == ("10.1.2.3",)


def test_a_mapped_address_is_allowed_by_the_network_it_really_is_in() -> None:
    assert check("http://[::ffff:127.0.0.1]/", networks("127.0.0.0/8")).addresses == ("127.0.0.1",)
    with pytest.raises(AddressRefused):
        check("http://[::ffff:127.0.0.1]/", networks("::/0"))


@pytest.mark.parametrize("port", [0, 1, 22, 25, 110, 445, 1023])
def test_a_port_of_another_service_is_refused_unless_the_network_is_allowed(port: int) -> None:
    with pytest.raises(AddressRefused, match=f"port {port}"):
        check(f"http://hook.example:{port}/", resolve=public)
    allowed = networks(f"{PUBLIC}/32")
    assert check(f"http://hook.example:{port}/", allowed, public).url.port == port


def test_a_name_without_address_is_unknown_now_and_not_refused_for_ever() -> None:
    def nothing(_host: str) -> Sequence[str]:
        raise OSError("Name or service not known")

    with pytest.raises(AddressUnknown, match=r"hook\.example cannot be looked up"):
        check("https://hook.example/", resolve=nothing)
    with pytest.raises(AddressUnknown, match="no address"):
        check("https://hook.example/", resolve=resolving())


def test_a_resolver_that_does_not_answer_is_not_waited_for() -> None:
    answered = threading.Event()

    def silent(_host: str) -> Sequence[str]:
        answered.wait(20)
        return [PUBLIC]

    with pytest.raises(AddressUnknown, match="took over"):
        check("https://hook.example/", resolve=silent, resolve_seconds=0.05)
    answered.set()


def test_a_resolver_that_answers_nonsense_is_an_unknown_address() -> None:
    with pytest.raises(AddressUnknown):
        check("https://hook.example/", resolve=resolving("not an address"))


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


@pytest.mark.parametrize(
    "text", ["127.0.0.1/8", "10.0.0.0/33", "everything", "127.0.0.0/8;10.0.0.0/8"]
)
def test_a_network_that_is_none_is_named(text: str) -> None:
    with pytest.raises(ValueError, match=text.split("/")[0]):
        networks(text)
