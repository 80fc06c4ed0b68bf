"""Strategies that make every packet of both versions."""

from hypothesis import strategies as st

from ringdove.protocol.mqtt import packets as p
from ringdove.protocol.mqtt.packets import V5, V311

text = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=12)
topic = st.text("abc/é$ ", min_size=1, max_size=12)
pattern = st.lists(st.sampled_from(["a", "b", "+", ""]), min_size=1, max_size=4).map(
    lambda levels: "/".join(levels) or "#"
)
u16 = st.integers(0, 0xFFFF)
some_u16 = st.integers(1, 0xFFFF)
u32 = st.integers(0, 0xFFFF_FFFF)
flag = st.integers(0, 1)
payload = st.binary(max_size=300)
users = st.lists(st.tuples(text, text), min_size=1, max_size=3)

MESSAGE = {
    "payload_format_indicator": flag,
    "message_expiry_interval": u32,
    "content_type": text,
    "response_topic": topic,
    "correlation_data": payload,
    "user_property": users,
}
ANSWER = {"reason_string": text, "user_property": users}


def properties(**optional):
    return st.fixed_dictionaries({}, optional=optional).map(lambda found: found or None)


def _acks(version):
    extra = properties(**ANSWER) if version == V5 else st.none()
    for kind, refused in (
        (p.PubAck, 0x97), (p.PubRec, 0x91), (p.PubRel, 0x92), (p.PubComp, 0x92),
    ):  # fmt: skip
        reason = st.sampled_from([0, refused]) if version == V5 else st.just(0)
        yield st.builds(kind, some_u16, reason, extra)


def publishes(version):
    extra = (
        properties(
            **MESSAGE,
            topic_alias=some_u16,
            subscription_identifier=st.lists(st.integers(1, 268_435_455), min_size=1, max_size=3),
        )
        if version == V5
        else st.none()
    )
    return st.one_of(
        st.builds(
            p.Publish, topic, payload, st.just(0), st.just(0), st.booleans(), st.just(False), extra
        ),
        st.builds(
            p.Publish,
            topic,
            payload,
            st.integers(1, 2),
            some_u16,
            st.booleans(),
            st.booleans(),
            extra,
        ),
    )


def connects(version):
    if version == V5:
        extra = properties(
            session_expiry_interval=u32, receive_maximum=some_u16, topic_alias_maximum=u16,
            maximum_packet_size=st.integers(1, 0xFFFF_FFFF), request_problem_information=flag,
            request_response_information=flag, user_property=users,
        )  # fmt: skip
        will_extra = properties(**MESSAGE, will_delay_interval=u32)
        password = st.none() | payload
    else:
        extra = will_extra = password = st.none()
    will = st.none() | st.builds(
        p.Will, topic, payload, st.integers(0, 2), st.booleans(), will_extra
    )
    return st.builds(
        p.Connect,
        text,
        st.just(version),
        st.booleans(),
        u16,
        st.none() | text,
        password,
        will,
        extra,
    )


def connacks(version):
    if version != V5:
        return st.builds(
            p.ConnAck, st.booleans(), st.sampled_from([0, 0x84, 0x85, 0x86, 0x87, 0x88])
        )
    extra = properties(
        **ANSWER, session_expiry_interval=u32, assigned_client_identifier=text,
        server_keep_alive=u16, receive_maximum=some_u16, topic_alias_maximum=u16,
        maximum_packet_size=st.integers(1, 0xFFFF_FFFF), retain_available=flag,
        maximum_qos=flag, wildcard_subscription_available=flag,
        subscription_identifier_available=flag, shared_subscription_available=flag,
        response_information=text, server_reference=text,
    )  # fmt: skip
    return st.builds(p.ConnAck, st.booleans(), st.sampled_from([0, 0x86, 0x97]), extra)


def subscribes(version):
    if version == V5:
        filters = st.builds(
            p.Filter, pattern, st.integers(0, 2), st.booleans(), st.booleans(), st.integers(0, 2)
        )
        extra = properties(
            subscription_identifier=st.lists(st.integers(1, 268_435_455), min_size=1, max_size=1),
            user_property=users,
        )
    else:
        filters, extra = st.builds(p.Filter, pattern, st.integers(0, 2)), st.none()
    return st.builds(p.Subscribe, some_u16, st.lists(filters, min_size=1, max_size=4), extra)


def packets(version):
    """Any packet that the version has."""
    five = version == V5
    extra = properties(**ANSWER) if five else st.none()
    user = properties(user_property=users) if five else st.none()
    codes = st.lists(st.sampled_from([0, 1, 2, 0x80]), min_size=1, max_size=4)
    kinds = [
        connects(version), connacks(version), publishes(version), *_acks(version),
        subscribes(version), st.builds(p.SubAck, some_u16, codes, extra),
        st.builds(p.Unsubscribe, some_u16, st.lists(pattern, min_size=1, max_size=4), user),
        st.builds(
            p.UnsubAck, some_u16,
            st.lists(st.sampled_from([0, 0x11]), min_size=1, max_size=4) if five else st.just([]),
            extra,
        ),
        st.just(p.PingReq()), st.just(p.PingResp()),
    ]  # fmt: skip
    if five:
        kinds += [
            st.builds(
                p.Disconnect, st.sampled_from([0, 4, 0x8E]),
                properties(**ANSWER, session_expiry_interval=u32, server_reference=text),
            ),
            st.builds(
                p.Auth, st.sampled_from([0, 0x18, 0x19]),
                properties(**ANSWER, authentication_method=text, authentication_data=payload),
            ),
        ]  # fmt: skip
    else:
        kinds.append(st.just(p.Disconnect()))
    return st.one_of(kinds)


versioned = st.sampled_from([V311, V5]).flatmap(
    lambda version: st.tuples(st.just(version), packets(version))
)
