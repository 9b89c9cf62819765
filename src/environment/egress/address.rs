//! The distinction between public and other addresses.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Returns true if an address belongs to the public internet, and not to this machine, a private
/// network, a cloud metadata service or a special-purpose range.
pub fn is_public(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => is_public_v4(address),
        IpAddr::V6(address) => is_public_v6(address),
    }
}

fn is_public_v4(address: Ipv4Addr) -> bool {
    let [a, b, c, _] = address.octets();
    match a {
        // This network, private, loopback; multicast, reserved, broadcast.
        0 | 10 | 127 | 224..=255 => false,
        // Carrier-grade NAT.
        100 => !(64..=127).contains(&b),
        // Link-local, including metadata services.
        169 => b != 254,
        172 => !(16..=31).contains(&b),
        // Private network; protocol assignments, documentation, 6to4 relay.
        192 => !matches!((b, c), (168, _) | (0, 0 | 2) | (88, 99)),
        // Benchmarks and documentation.
        198 => !matches!((b, c), (18 | 19, _) | (51, 100)),
        203 => (b, c) != (0, 113),
        _ => true,
    }
}

fn is_public_v6(address: Ipv6Addr) -> bool {
    if let Some(mapped) = address.to_ipv4_mapped() {
        return is_public_v4(mapped);
    }
    let [a, b, c, d, e, f, ..] = address.segments();
    let within = |high: u16, low: u16| {
        let [p, q] = high.to_be_bytes();
        let [r, s] = low.to_be_bytes();
        is_public_v4(Ipv4Addr::new(p, q, r, s))
    };
    match (a, b) {
        // An IPv4 address behind a NAT64 translator.
        (0x64, 0xff9b) if [c, d, e, f] == [0; 4] => {
            let [.., high, low] = address.segments();
            within(high, low)
        }
        // 6to4 contains an IPv4 address.
        (0x2002, high) => within(high, c),
        // Protocol assignments (including Teredo), documentation.
        (0x2001, 0..=0x1ff | 0xdb8) | (0x3fff, 0..=0xfff) => false,
        // Global unicast. Everything else is local, multicast or unassigned.
        (0x2000..=0x3fff, _) => true,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_public_addresses_pass() {
        let public = [
            "1.1.1.1",
            "8.8.8.8",
            "100.63.0.1",
            "172.32.0.1",
            "192.0.1.1",
            "2606:4700::1111",
            "::ffff:8.8.8.8",
            "64:ff9b::808:808",
            "2002:808:808::1",
        ];
        for address in public {
            assert!(is_public(address.parse().unwrap()), "{address}");
        }
        let local = [
            "0.0.0.0",
            "10.1.2.3",
            "100.64.0.1",
            "127.0.0.1",
            "127.9.9.9",
            "169.254.169.254",
            "172.16.0.1",
            "172.31.255.255",
            "192.0.0.8",
            "192.168.0.1",
            "198.18.0.1",
            "203.0.113.7",
            "224.0.0.1",
            "255.255.255.255",
            "::",
            "::1",
            "::ffff:127.0.0.1",
            "::ffff:a9fe:a9fe",
            "::7f00:1",
            "64:ff9b::a9fe:a9fe",
            "64:ff9b:1::1",
            "2001::1",
            "2001:db8::1",
            "2002:7f00:1::1",
            "3fff::1",
            "fc00::1",
            "fd00:ec2::254",
            "fe80::1",
            "fec0::1",
            "ff02::1",
        ];
        for address in local {
            assert!(!is_public(address.parse().unwrap()), "{address}");
        }
    }
}
