"""Accounts: keys, grants, passwords and quotas, on both stores, and with others writing too."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringdove.controllers import accounts as module
from ringdove.controllers import passwords
from ringdove.controllers.accounts import (
    ALL,
    DEFAULT_ACCOUNT,
    GRANTS_MAX,
    KEYS_MAX,
    AccessKey,
    Account,
    Accounts,
    Quotas,
    full_name,
    may,
    owner_of,
)
from ringdove.controllers.broker import Broker
from ringdove.errors import InvalidArgument, LimitExceeded, RecordConflict, StoreUnavailable
from ringdove.pending import run
from ringdove.stores.embedded import EmbeddedStore
from ringdove.stores.memory import MemoryStore

OTHER = "123456789012"
PASSWORD = "correct horse battery"


@pytest.fixture(params=["memory", "embedded"])
def store(request, tmp_path, clock):
    made = MemoryStore(clock) if request.param == "memory" else EmbeddedStore(tmp_path, clock)
    yield made
    run(made.close())


@pytest.fixture
def accounts(store):
    return Accounts(store)


@pytest.fixture
def shop(accounts):
    return run(accounts.create("shop"))[0]


class Meddled:
    """A store in which something happens just before a record is written."""

    def __init__(self, store, meanwhile):
        self._store = store
        self._meanwhile = meanwhile

    def __getattr__(self, name):
        return getattr(self._store, name)

    async def put(self, key, *rest, **options):
        await self._meanwhile(key)
        return await self._store.put(key, *rest, **options)


def records(store):
    return sorted(r.key for prefix in ("account", "key/") for r in run(store.scan(prefix)))


# -- accounts --------------------------------------------------------------------------------------


def test_an_account_is_made_found_listed_and_deleted(accounts, store, clock):
    assert run(accounts.list()) == []
    account, key = run(accounts.create("shop"))
    assert account.id.isdigit()
    assert len(account.id) == 12
    assert account.created_ms == clock.now_ms()
    assert account.keys == {key.id: key}
    assert key.id.startswith("AKIA")
    assert (len(key.id), len(key.secret)) == (20, 40)
    assert (key.roles, key.active) == (ALL, True)
    assert run(accounts.get("shop")) == run(accounts.get(account.id)) == account
    assert run(accounts.list()) == [account]
    assert run(Accounts(store).find_key(key.id)) == (account, key)
    run(accounts.delete("shop"))
    assert run(accounts.list()) == []
    assert records(store) == []


def test_names_and_ids_are_taken_once(accounts, store):
    run(accounts.create("shop", account_id=OTHER))
    before = records(store)
    with pytest.raises(InvalidArgument, match="an account 'shop' already"):
        run(accounts.create("shop"))
    with pytest.raises(InvalidArgument, match=f"id {OTHER} already"):
        run(accounts.create("mall", account_id=OTHER))
    assert records(store) == before
    run(accounts.delete(OTHER))
    run(accounts.create("shop", account_id=OTHER))


def test_what_is_no_name_or_id_is_refused(accounts):
    for name in ("", "a/b", "x" * 97, OTHER):
        with pytest.raises(InvalidArgument, match="is no account name"):
            run(accounts.create(name))
    for account_id in ("", "1", "12345678901a", "1234567890123", "\N{ARABIC-INDIC DIGIT ONE}" * 12):
        with pytest.raises(InvalidArgument, match="use 12 digits"):
            run(accounts.create("shop", account_id=account_id))


def test_an_unknown_account_is_told_with_the_nearest_name(accounts, shop):
    with pytest.raises(InvalidArgument, match=r"no account 'shp'. Did you mean 'shop'\?"):
        run(accounts.get("shp"))
    for missing in (OTHER, "a/b", ""):
        with pytest.raises(InvalidArgument, match="There is no account"):
            run(accounts.delete(missing))


def test_accounts_survive_a_restart(tmp_path):
    store = EmbeddedStore(tmp_path)
    account, key = run(Accounts(store).create("shop", password=PASSWORD))
    account = run(Accounts(store).grant("shop", f"{OTHER}.*", ["send"]))
    account = run(Accounts(store).set_quota("shop", requests_per_s=0.5, bytes_max=2**40))
    run(store.close())
    store = EmbeddedStore(tmp_path)
    assert run(Accounts(store).get("shop")) == account
    assert run(Accounts(store).find_key(key.id)) == (account, key)
    run(store.close())


# -- keys ------------------------------------------------------------------------------------------


def test_keys_are_rotated_without_a_gap(accounts, shop):
    [old] = shop.keys
    new = run(accounts.add_key("shop"))
    assert run(accounts.find_key(old))[1].active
    assert run(accounts.find_key(new.id))[1] == new
    assert run(accounts.revoke_key(old)).active is False
    assert run(accounts.find_key(old)) is None
    assert run(accounts.find_key(new.id))[1] == new
    assert not run(accounts.revoke_key(old)).active
    assert [key.active for key in run(accounts.get("shop")).keys.values()] == [False, True]


def test_keys_that_do_not_exist_are_not_found(accounts, shop):
    for missing in ("", "AKIA" + "A" * 16, "a/b", "AKIA/" + "A" * 15, "x" * 10_000):
        assert run(accounts.find_key(missing)) is None
        with pytest.raises(InvalidArgument, match="There is no access key"):
            run(accounts.revoke_key(missing))


def test_the_keys_of_a_deleted_account_do_not_work(accounts, shop):
    [key] = shop.keys
    assert run(accounts.find_key(key)) is not None
    run(accounts.delete("shop"))
    assert run(accounts.find_key(key)) is None
    assert run(accounts.configured()) is False


def test_an_own_change_is_seen_at_once_and_that_of_another_within_a_second(store, clock):
    ours, theirs = Accounts(store), Accounts(store)
    assert run(ours.configured()) is False
    account, key = run(theirs.create("shop"))
    assert run(theirs.configured()) is True
    assert run(ours.configured()) is False
    clock.sleep_ms(1_000)
    assert run(ours.configured()) is True

    assert run(ours.find_key(key.id)) == (account, key)
    run(theirs.revoke_key(key.id))
    assert run(theirs.find_key(key.id)) is None
    clock.sleep_ms(999)
    assert run(ours.find_key(key.id)) == (account, key)
    clock.sleep_ms(1)
    assert run(ours.find_key(key.id)) is None


def test_what_was_read_before_a_change_is_not_remembered_after_it(store):
    accounts = Accounts(store)
    _, key = run(accounts.create("shop"))
    get = store.get

    async def slow_get(name):
        found = await get(name)
        if name.startswith("account/"):
            store.get = get
            await accounts.revoke_key(key.id)
        return found

    store.get = slow_get
    assert run(accounts.find_key(key.id)) is not None  # It was read before.
    assert run(accounts.find_key(key.id)) is None


def test_of_too_many_keys_revoked_ones_are_forgotten(accounts, store, clock, monkeypatch):
    monkeypatch.setattr(module, "KEYS_MAX", 4)
    run(accounts.create("shop"))
    for _ in range(3):
        clock.sleep_ms(1)
        run(accounts.add_key("shop"))
    before = records(store)
    with pytest.raises(LimitExceeded, match="revoke one"):
        run(accounts.add_key("shop"))
    assert records(store) == before
    first, second, *_ = run(accounts.get("shop")).keys
    for key in (second, first):
        run(accounts.revoke_key(key))
    clock.sleep_ms(1)
    run(accounts.add_key("shop"))
    assert first not in run(accounts.get("shop")).keys
    assert second in run(accounts.get("shop")).keys
    assert f"key/{first}" not in records(store)


def test_an_account_as_large_as_can_be_fits_in_a_record(accounts, store):
    account, _ = run(accounts.create("s" * 96))
    keys = {f"{n:020}": AccessKey(f"{n:020}", "s" * 40, 2**53) for n in range(KEYS_MAX)}
    grants = {f"{OTHER}.{n:095}*": ALL for n in range(GRANTS_MAX)}
    large = Account(account.id, account.name, 2**53, "h" * 100, keys, grants, 1e300, 2**63 - 1)
    run(store.put(f"account/{account.id}", module._encode(large)))
    assert run(accounts.get(account.id)) == large
    with pytest.raises(LimitExceeded, match="ends in"):
        run(accounts.grant(account.id, "one-more", ALL))


# -- passwords -------------------------------------------------------------------------------------


def test_a_password_is_checked_and_never_stored(tmp_path):
    store = EmbeddedStore(tmp_path)
    accounts = Accounts(store)
    run(accounts.create("shop", password=PASSWORD))
    run(accounts.create("mall", password=PASSWORD))
    assert run(accounts.check_password("shop", PASSWORD)) is True
    assert run(accounts.check_password(run(accounts.get("shop")).id, PASSWORD)) is True
    assert run(accounts.check_password("shop", PASSWORD + "!")) is False
    hashes = [account.password for account in run(accounts.list())]
    assert all(found.startswith("$argon2id$") for found in hashes)
    assert len(set(hashes)) == 2
    run(store.close())
    for path in tmp_path.rglob("*"):
        if path.is_file():
            assert PASSWORD.encode() not in path.read_bytes(), path


def test_a_password_is_changed_and_taken_away(accounts):
    run(accounts.create("shop"))
    assert run(accounts.check_password("shop", PASSWORD)) is False
    run(accounts.set_password("shop", PASSWORD))
    assert run(accounts.check_password("shop", PASSWORD)) is True
    run(accounts.set_password("shop", "another one"))
    assert run(accounts.check_password("shop", PASSWORD)) is False
    assert run(accounts.check_password("shop", "another one")) is True
    run(accounts.set_password("shop", None))
    assert run(accounts.check_password("shop", "another one")) is False


def test_senseless_passwords_are_refused(accounts):
    run(accounts.create("shop", password=PASSWORD))
    for bad in ("", "short", "x" * 1_025):
        with pytest.raises(InvalidArgument, match="8 to 1024"):
            run(accounts.set_password("shop", bad))
        assert run(accounts.check_password("shop", bad)) is False
    assert run(accounts.check_password("shop", PASSWORD)) is True
    run(accounts.set_password("shop", "\udc80" * 8))  # Even this is a password.
    assert run(accounts.check_password("shop", "\udc80" * 8)) is True
    assert run(accounts.check_password("shop", "?" * 8)) is False


@pytest.mark.parametrize("name", ["nobody", "without", "a/b", "", "0" * 12, "x" * 10_000])
def test_where_there_is_no_password_as_much_work_is_done(store, monkeypatch, name):
    accounts = Accounts(store)
    run(accounts.create("without"))
    checked = []
    verify = passwords._verify

    def watched(hashed, password):
        checked.append(threading.current_thread())
        assert not verify(hashed, password)
        return True  # Even who guesses nobody's password is not let in.

    monkeypatch.setattr(passwords, "_verify", watched)
    assert run(accounts.check_password(name, PASSWORD)) is False
    [thread] = checked
    assert thread is not threading.current_thread()


def test_the_hash_of_nobody_costs_as_much_as_any():
    assert not passwords._hasher().check_needs_rehash(passwords._NOBODY)
    assert passwords._verify(passwords._NOBODY, PASSWORD) is False


def test_only_so_many_passwords_wait_to_be_checked(store, monkeypatch):
    monkeypatch.setattr(passwords, "_HASHES_WAITING_MAX", 1)
    accounts = Accounts(store)
    gate = threading.Event()
    waiting = [accounts._passwords._submit(gate.wait) for _ in range(3)]
    with pytest.raises(LimitExceeded, match="try again"):
        run(accounts.check_password("nobody", PASSWORD))
    gate.set()
    assert all(pending.wait(30) for pending in waiting)
    assert run(accounts.check_password("nobody", PASSWORD)) is False


# -- what is told ----------------------------------------------------------------------------------


def test_secrets_are_told_when_a_key_is_made_and_never_again(store):
    broker = Broker(store)
    made = run(broker.account("create", {"name": "shop", "password": PASSWORD}))
    added = run(broker.account("add_key", {"account": "shop", "roles": ["send"]}))
    assert run(broker.accounts.find_key(made["key"]["id"]))[1].secret == made["key"]["secret"]
    assert run(broker.accounts.find_key(added["id"]))[1].secret == added["secret"]
    hashed = run(broker.accounts.get("shop")).password
    shop = {"account": "shop"}
    for command, arguments in [
        ("list", {}),
        ("get", shop),
        ("grant", {**shop, "queue": "q", "roles": ["send"]}),
        ("ungrant", {**shop, "queue": "q"}),
        ("set_quota", {**shop, "requests_per_s": 1}),
        ("set_password", {**shop, "password": PASSWORD + "!"}),
        ("revoke_key", {"key": added["id"]}),
        ("delete", shop),
    ]:
        told = str(run(broker.account(command, arguments)))
        for secret in (made["key"]["secret"], added["secret"], hashed, "argon2", PASSWORD):
            assert secret not in told, command


def test_looking_at_an_account_shows_no_secret(accounts):
    account, key = run(accounts.create("shop", password=PASSWORD))
    for thing in (account, key, [account], f"{account} {key}"):
        assert key.secret not in repr(thing)
        assert "argon2" not in repr(thing)


# -- names and rights ------------------------------------------------------------------------------

IDS = st.from_regex(r"[0-9]{12}", fullmatch=True) | st.just(DEFAULT_ACCOUNT)
NAMES = st.from_regex(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,30}", fullmatch=True) | st.just(f"{OTHER}.q")


@given(IDS, NAMES)
def test_a_full_name_leads_back_or_is_refused(account_id, name):
    try:
        full = full_name(account_id, name)
    except InvalidArgument:
        assert owner_of(name)[0] != account_id == DEFAULT_ACCOUNT
    else:
        assert owner_of(full) == (account_id, name)


def test_queues_of_the_default_account_have_plain_names():
    assert full_name(DEFAULT_ACCOUNT, "orders") == "orders"
    assert full_name(OTHER, "orders.fifo") == f"{OTHER}.orders.fifo"
    assert owner_of("orders.dead") == (DEFAULT_ACCOUNT, "orders.dead")
    assert owner_of(f"{OTHER}.orders") == (OTHER, "orders")
    assert owner_of(f"{OTHER}.") == (DEFAULT_ACCOUNT, f"{OTHER}.")
    for account_id, name in [(DEFAULT_ACCOUNT, f"{OTHER}.orders"), ("12", "q"), ("", "q")]:
        with pytest.raises(InvalidArgument, match="can have no queue"):
            full_name(account_id, name)


@pytest.mark.parametrize("role", ALL)
@pytest.mark.parametrize("of_key", [ALL, ("send",), ("receive", "manage"), ()])
@pytest.mark.parametrize("granted", [None, ("send",), ("receive", "manage"), ALL])
def test_a_right_needs_both_the_key_and_the_grant(role, of_key, granted):
    grants = {} if granted is None else {f"{OTHER}.orders": granted}
    account = Account("1" * 12, "shop", 0, grants=grants)
    key = AccessKey("AKIA", "", 0, of_key)
    own = f"{account.id}.orders"
    assert may(account, key, account.id, own, role) == (role in of_key)
    allowed = role in of_key and granted is not None and role in granted
    assert may(account, key, OTHER, f"{OTHER}.orders", role) == allowed
    assert not may(account, key, OTHER, f"{OTHER}.orders2", role)
    assert not may(account, key, "2" * 12, f"{'2' * 12}.orders", role)
    revoked = AccessKey("AKIA", "", 0, of_key, active=False)
    assert not may(account, revoked, account.id, own, role)


@pytest.mark.parametrize(
    ("granted", "owner", "name", "covered"),
    [
        (f"{OTHER}.*", OTHER, "orders", True),
        (f"{OTHER}.ord*", OTHER, "orders", True),
        (f"{OTHER}.ord*", OTHER, "ord", True),
        (f"{OTHER}.ord*", OTHER, "reorder", False),
        (f"{OTHER}.ord*", "2" * 12, "orders", False),
        (f"{OTHER}.ord*", DEFAULT_ACCOUNT, "orders", False),
        ("orders", DEFAULT_ACCOUNT, "orders", True),
        ("ord*", DEFAULT_ACCOUNT, "orders", True),
        ("ord*", OTHER, "orders", False),
        ("*", DEFAULT_ACCOUNT, "orders", True),
        ("*", OTHER, "orders", False),
        ("1*", OTHER, "orders", False),
        (OTHER + "*", OTHER, "orders", False),
    ],
)
def test_a_pattern_stays_within_one_account(granted, owner, name, covered):
    account = Account("1" * 12, "shop", 0, grants={granted: ("send",)})
    key = AccessKey("AKIA", "", 0)
    assert may(account, key, owner, full_name(owner, name), "send") is covered


@pytest.mark.parametrize("owner", ["1" * 12, DEFAULT_ACCOUNT])
def test_a_queue_that_is_not_the_owner_s_is_refused(owner):
    account = Account("1" * 12, "shop", 0, grants={"1*": ALL, "*": ALL})
    assert not may(account, AccessKey("AKIA", "", 0), owner, f"{OTHER}.orders", "send")


def test_several_grants_add_up():
    grants = {f"{OTHER}.*": ("send",), f"{OTHER}.orders": ("receive",)}
    account, key = Account("1" * 12, "shop", 0, grants=grants), AccessKey("AKIA", "", 0)
    assert [r for r in ALL if may(account, key, OTHER, f"{OTHER}.orders", r)] == ["send", "receive"]
    assert [r for r in ALL if may(account, key, OTHER, f"{OTHER}.q", r)] == ["send"]


def test_grants_are_given_replaced_and_taken_back(accounts, shop):
    run(accounts.grant("shop", f"{OTHER}.orders", ["receive", "send", "send"]))
    assert run(accounts.get("shop")).grants == {f"{OTHER}.orders": ("send", "receive")}
    run(accounts.grant(shop.id, f"{OTHER}.orders", ["manage"]))
    run(accounts.grant(shop.id, "plain*", ["send"]))
    found = run(accounts.get("shop")).grants
    assert found == {f"{OTHER}.orders": ("manage",), "plain*": ("send",)}
    run(accounts.ungrant("shop", f"{OTHER}.orders"))
    with pytest.raises(InvalidArgument, match=r"no grant on .* \(it has: plain\*\)"):
        run(accounts.ungrant("shop", f"{OTHER}.orders"))


def test_senseless_grants_are_refused(accounts, shop):
    for bad in ("", "a/b", "*a", "a**", f"{OTHER}.a b", f"{OTHER}.*a"):
        with pytest.raises(InvalidArgument, match="is no queue name"):
            run(accounts.grant("shop", bad, ALL))
    for bad in (f"{OTHER}.", f"{OTHER}*"):
        with pytest.raises(InvalidArgument, match=f"'{OTHER}.*' for all"):
            run(accounts.grant("shop", bad, ALL))
    with pytest.raises(InvalidArgument, match="use 'orders'"):
        run(accounts.grant("shop", f"{DEFAULT_ACCOUNT}.orders", ALL))
    with pytest.raises(InvalidArgument, match="may use it anyway"):
        run(accounts.grant("shop", f"{shop.id}.*", ALL))
    assert run(accounts.get("shop")).grants == {}


# -- quotas ----------------------------------------------------------------------------------------


def take(quotas, account, now_ms, count):
    return sum(quotas.take(account, now_ms) for _ in range(count))


def test_an_account_may_ask_as_often_as_its_quota_says():
    quotas, account = Quotas(), Account("1" * 12, "shop", 0, requests_per_s=10)
    assert take(quotas, account, 1_000, 50) == 10
    assert take(quotas, account, 1_099, 50) == 0
    assert take(quotas, account, 1_100, 50) == 1
    assert take(quotas, account, 1_600, 50) == 5
    assert take(quotas, account, 60_000, 50) == 10
    assert take(quotas, account, 59_000, 50) == 0
    assert take(quotas, account, 60_100, 50) == 1


def test_quotas_count_each_account_for_itself():
    quotas = Quotas()
    slow = Account("1" * 12, "slow", 0, requests_per_s=0.5)
    other = Account("2" * 12, "other", 0, requests_per_s=3)
    free = Account("3" * 12, "free", 0)
    assert [take(quotas, who, 0, 100) for who in (slow, other, free)] == [1, 3, 100]
    assert [take(quotas, who, 1_999, 100) for who in (slow, other, free)] == [0, 3, 100]
    assert take(quotas, slow, 2_000, 100) == 1


def test_quotas_remember_a_bounded_number_of_accounts(monkeypatch):
    monkeypatch.setattr(module, "ACCOUNTS_MAX", 10)
    quotas = Quotas()
    for n in range(50):
        assert quotas.take(Account(f"{n:012}", "x", 0, requests_per_s=1), 0)
    assert len(quotas._buckets) == 10
    assert not quotas.take(Account(f"{49:012}", "x", 0, requests_per_s=1), 0)


def test_quotas_are_set_one_by_one_and_lifted(accounts, shop):
    run(accounts.set_quota("shop", requests_per_s=2.5))
    run(accounts.set_quota("shop", bytes_max=10))
    found = run(accounts.get("shop"))
    assert (found.requests_per_s, found.bytes_max) == (2.5, 10)
    run(accounts.set_quota("shop", requests_per_s=None))
    found = run(accounts.get("shop"))
    assert (found.requests_per_s, found.bytes_max) == (None, 10)
    for bad in (0, -1, float("nan"), float("inf")):
        with pytest.raises(InvalidArgument, match="above 0"):
            run(accounts.set_quota("shop", requests_per_s=bad))
    for bad in (0, -1, 2**63):
        with pytest.raises(InvalidArgument, match="must be 1 to"):
            run(accounts.set_quota("shop", bytes_max=bad))


# -- others write too, or the store fails ----------------------------------------------------------


def test_two_writers_do_not_lose_each_other_s_change(store):
    theirs = Accounts(store)
    run(theirs.create("shop"))
    left = iter(["a", "b", "c"])

    async def meanwhile(key):
        if key.startswith("account/") and (queue := next(left, None)):
            await theirs.grant("shop", queue, ["send"])

    ours = Accounts(Meddled(store, meanwhile))
    key = run(ours.add_key("shop"))
    found = run(theirs.get("shop"))
    assert sorted(found.grants) == ["a", "b", "c"]
    assert key.id in found.keys


def test_many_threads_change_one_account(store):
    writers = [Accounts(store) for _ in range(4)]
    run(writers[0].create("shop"))

    def work(n):
        run(writers[n].grant("shop", f"queue-{n}", ["send"]))
        return [run(writers[n].add_key("shop")).id for _ in range(5)]

    with ThreadPoolExecutor(4) as pool:
        made = {key for keys in pool.map(work, range(4)) for key in keys}
    found = run(Accounts(store).get("shop"))
    assert made < found.keys.keys()
    assert len(found.keys) == 21
    assert len(found.grants) == 4
    assert all(run(Accounts(store).find_key(key)) for key in made)


def test_a_change_is_not_tried_for_ever(store):
    theirs = Accounts(store)
    run(theirs.create("shop"))

    async def meanwhile(key):
        if key.startswith("account/"):
            await theirs.set_quota("shop", requests_per_s=1)

    before = records(store)
    with pytest.raises(RecordConflict, match="being changed by others"):
        run(Accounts(Meddled(store, meanwhile)).add_key("shop"))
    assert records(store) == before


def test_an_account_deleted_meanwhile_is_not_brought_back(store):
    theirs = Accounts(store)
    run(theirs.create("shop"))

    async def meanwhile(key):
        if key.startswith("account/"):
            await theirs.delete("shop")

    with pytest.raises(InvalidArgument, match="There is no account"):
        run(Accounts(Meddled(store, meanwhile)).add_key("shop"))
    assert records(store) == []


def test_of_two_who_take_one_name_one_gets_it(store):
    theirs = Accounts(store)

    async def meanwhile(key):
        if key.startswith("account-name/"):
            await theirs.create("shop", account_id=OTHER)

    with pytest.raises(InvalidArgument, match="an account 'shop' already"):
        run(Accounts(Meddled(store, meanwhile)).create("shop"))
    assert [account.id for account in run(theirs.list())] == [OTHER]
    assert len(records(store)) == 3


@pytest.mark.parametrize("fails_at", ["key/", "account/", "account-name/"])
def test_a_creation_cut_short_leaves_no_key_that_works_unlisted(store, fails_at):
    async def meanwhile(key):
        if key.startswith(fails_at):
            raise StoreUnavailable("The disk is gone.")

    with pytest.raises(StoreUnavailable):
        run(Accounts(Meddled(store, meanwhile)).create("shop", account_id=OTHER))
    accounts = Accounts(store)
    listed = {key for account in run(accounts.list()) for key in account.keys}
    for record in run(store.scan("key/")):
        found = run(accounts.find_key(record.key.partition("/")[2]))
        assert found is None or found[1].id in listed
    if listed:
        run(accounts.delete(OTHER))
    run(accounts.create("shop", account_id=OTHER))


def test_a_name_left_by_a_deletion_cut_short_is_free(accounts, store):
    account, _ = run(accounts.create("shop"))
    run(store.remove(f"account/{account.id}"))
    again, _ = run(accounts.create("shop"))
    assert run(accounts.get("shop")) == again
