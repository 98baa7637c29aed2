"""Configurations of the proxies and of the backend: one worker each, tuned as their own documentation advises.

All proxies have the same listeners, `ecdsa` and `rsa` (HTTPS), `http`, and `tcp`, in front of the same backend. They
use the same certificates, TLS 1.3 with AES-128-GCM and X25519, tickets, kept upstream connections, and no logs.
`echo_https`, `echo_http` and `echo_tcp` lead to the echo server of `evergate-bench` instead. `passthrough` chooses the
backend's TLS server by the name in the ClientHello.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path

LISTENERS = ("ecdsa", "rsa", "http", "tcp")
ECHO_LISTENERS = ("echo_https", "echo_http", "echo_tcp")
# HTTPS listeners with the kind of their certificate.
CERTIFICATES = {"ecdsa": "ecdsa", "rsa": "rsa", "echo_https": "ecdsa"}
PASSTHROUGH_LISTENERS = ("passthrough",)
TCP_LISTENERS = ("tcp", "echo_tcp")
# Listeners for which nginx needs its stream module.
STREAM_LISTENERS = TCP_LISTENERS + PASSTHROUGH_LISTENERS
# Name of the certificates, and of the backend behind `passthrough`.
PASSED_THROUGH = "bench.example"
CONNECTIONS_MAX = 16_000
HAPROXY_CONNECTIONS_MAX = 6_000  # each takes two descriptors, and splice pipes come on top
IDLE_UPSTREAM_MAX = 256
NGINX_BULK = "proxy_buffer_size 16k; proxy_buffers 16 64k; proxy_busy_buffers_size 256k;"
NGINX_STREAM_BULK = "proxy_buffer_size 64k;"
NGINX_STREAM = Path("/usr/lib/nginx/modules/ngx_stream_module.so")
NGINX_TLS = """    ssl_protocols TLSv1.3;
    ssl_conf_command Ciphersuites TLS_AES_128_GCM_SHA256;
    ssl_ecdh_curve X25519;
    ssl_session_tickets on;
    ssl_session_cache off;
    ssl_buffer_size 16k;
"""
NGINX_HTTP = f"""    access_log off;
    tcp_nodelay on;
    keepalive_timeout 600s;
    keepalive_requests 100000000;
    keepalive_time 24h;
{NGINX_TLS}    proxy_http_version 1.1;
    proxy_set_header Host $host;
"""


@dataclass(frozen=True)
class Material:
    """Files and ports that every configuration refers to."""

    folder: Path
    backend: int
    marked: int
    """A second port of the backend, whose responses have `X-Pool: marked`: the target of rules."""
    host: str = "127.0.0.1"
    """Address of the backend."""
    tls: int = 0
    """The backend's port for TLS; 0: none."""
    echo_http: int = 0
    """Port of the echo server for WebSockets and uploads."""
    echo_tcp: int = 0
    """Port of the echo server for raw bytes."""

    def certificate(self, kind: str) -> Path:
        return self.folder / f"{kind}.crt"

    def key(self, kind: str) -> Path:
        return self.folder / f"{kind}.key"


@dataclass(frozen=True)
class Tuning:
    """If one setting does not suit all cases, each peer gets the one that suits the case."""

    bulk: bool = False
    """Large buffers: they make 10 MB cheaper and 1 KB more expensive."""
    force_splice: bool = False
    """HAProxy's `splice-response` in place of `splice-auto`, which leaves it to a heuristic whether to splice."""


SMALL_BODIES = Tuning()
LARGE_BODIES = Tuning(bulk=True)


@dataclass(frozen=True)
class Ports:
    """One port per listener."""

    by_listener: dict[str, int] = field(default_factory=dict)

    def __getitem__(self, listener: str) -> int:
        return self.by_listener[listener]

    def __contains__(self, listener: str) -> bool:
        return listener in self.by_listener


def nginx_head(material: Material, name: str) -> str:
    """The common part of all nginx instances. As root the worker stays root, because the folder is private."""
    folder = material.folder
    user = "user root;\n" if os.geteuid() == 0 else ""
    module = f"load_module {NGINX_STREAM};\n" if NGINX_STREAM.exists() else ""
    return f"""{module}{user}worker_processes 1;
daemon off;
pid {folder}/{name}.pid;
error_log stderr crit;
worker_rlimit_nofile {CONNECTIONS_MAX};
events {{ worker_connections {CONNECTIONS_MAX}; multi_accept on; }}
"""


def nginx_paths(material: Material, name: str) -> str:
    kinds = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    return "".join(f"    {kind}_temp_path {material.folder}/{name}-{kind};\n" for kind in kinds)


def backend_config(material: Material) -> str:
    """Static files: `/10m` is 10 MB, `/100k` 100 KB, all other paths 1 KB, so that rules may look at any path."""
    site = f"""
        root {material.folder};
        location = /10m {{ rewrite ^ /10m.bin break; }}
        location = /100k {{ rewrite ^ /100k.bin break; }}
        location / {{ rewrite ^ /1k.bin break; }}"""
    tls = (
        f"""
    server {{ listen {material.host}:{material.tls} ssl backlog=4096;
        ssl_certificate {material.certificate("ecdsa")};
        ssl_certificate_key {material.key("ecdsa")};{site}
    }}"""
        if material.tls
        else ""
    )
    return f"""{nginx_head(material, "backend")}http {{
{nginx_paths(material, "backend")}    access_log off;
    sendfile on;
    sendfile_max_chunk 1m;
    tcp_nopush on;
    open_file_cache max=16 inactive=1h;
    open_file_cache_valid 1h;
    keepalive_timeout 1h;
    keepalive_requests 100000000;
    keepalive_time 24h;
{NGINX_TLS}    server {{ listen {material.host}:{material.backend} backlog=4096;{site}
    }}{tls}
    server {{ listen {material.host}:{material.marked} backlog=4096;
        add_header X-Pool marked;{site}
    }}
}}
"""


def nginx_config(material: Material, ports: Ports, tuning: Tuning) -> str:
    """`server_name` supplies the Host of requests without one (HTTP/1.0); the backend refuses an empty Host."""
    if "echo_http" in ports:
        return nginx_echo_config(material, ports)
    if "passthrough" in ports:
        return nginx_passthrough_config(material, ports, tuning)
    tls = "".join(
        f"""
    server {{
        listen 127.0.0.1:{ports[kind]} ssl backlog=4096;
        server_name bench.example;
        ssl_certificate {material.certificate(kind)};
        ssl_certificate_key {material.key(kind)};
        location / {{ proxy_pass http://web; }}
    }}"""
        for kind in ("ecdsa", "rsa")
    )
    stream = ""
    if "tcp" in ports:
        stream = f"""stream {{
    access_log off;
    server {{
        listen 127.0.0.1:{ports["tcp"]} backlog=4096;
        proxy_pass 127.0.0.1:{material.backend};
        {NGINX_STREAM_BULK if tuning.bulk else ""}
        tcp_nodelay on;
    }}
}}
"""
    return f"""{nginx_head(material, "nginx")}{stream}http {{
{nginx_paths(material, "nginx")}{NGINX_HTTP}    proxy_set_header Connection "";
    proxy_buffering on;
    {NGINX_BULK if tuning.bulk else "proxy_buffer_size 4k;"}
    proxy_max_temp_file_size 0;
    upstream web {{
        server 127.0.0.1:{material.backend};
        keepalive {IDLE_UPSTREAM_MAX};
        keepalive_requests 100000000;
        keepalive_time 24h;
        keepalive_timeout 600s;
    }}{tls}
    server {{
        listen 127.0.0.1:{ports["http"]} backlog=4096;
        server_name bench.example;
        location / {{ proxy_pass http://web; }}
    }}
}}
"""


def nginx_passthrough_config(material: Material, ports: Ports, tuning: Tuning) -> str:
    """A name that is not the backend's leads nowhere."""
    return f"""{nginx_head(material, "nginx")}stream {{
    access_log off;
    map $ssl_preread_server_name $terminator {{
        {PASSED_THROUGH} terminator;
    }}
    upstream terminator {{ server 127.0.0.1:{material.tls}; }}
    server {{
        listen 127.0.0.1:{ports["passthrough"]} backlog=4096;
        ssl_preread on;
        proxy_pass $terminator;
        {NGINX_STREAM_BULK if tuning.bulk else ""}
        tcp_nodelay on;
    }}
}}
"""


def nginx_echo_config(material: Material, ports: Ports) -> str:
    """WebSockets at `/ws`; uploads are forwarded as they arrive."""
    stream = ""
    if "echo_tcp" in ports:
        stream = f"""stream {{
    access_log off;
    server {{
        listen 127.0.0.1:{ports["echo_tcp"]} backlog=4096;
        proxy_pass 127.0.0.1:{material.echo_tcp};
        tcp_nodelay on;
    }}
}}
"""
    certificate = f"""
        ssl_certificate {material.certificate("ecdsa")};
        ssl_certificate_key {material.key("ecdsa")};"""
    servers = "".join(
        f"""
    server {{
        listen 127.0.0.1:{ports[name]}{" ssl" if name in CERTIFICATES else ""} backlog=4096;
        server_name bench.example;{certificate if name in CERTIFICATES else ""}
        location / {{
            proxy_pass http://echo;
            proxy_set_header Connection "";
        }}
        location /ws {{
            proxy_pass http://echo;
            proxy_set_header Upgrade $http_upgrade;
            proxy_set_header Connection upgrade;
        }}
    }}"""
        for name in ("echo_https", "echo_http")
    )
    return f"""{nginx_head(material, "nginx")}{stream}http {{
{nginx_paths(material, "nginx")}{NGINX_HTTP}    proxy_read_timeout 600s;
    proxy_request_buffering off;
    client_max_body_size 0;
    client_body_buffer_size 256k;
    upstream echo {{
        server 127.0.0.1:{material.echo_http};
        keepalive {IDLE_UPSTREAM_MAX};
        keepalive_requests 100000000;
        keepalive_time 24h;
        keepalive_timeout 600s;
    }}{servers}
}}
"""


def haproxy_config(material: Material, ports: Ports, tuning: Tuning, rules: str = "") -> str:
    splice = "splice-response" if tuning.force_splice else "splice-auto"
    tls = "".join(
        f"""
frontend {name}
    bind 127.0.0.1:{ports[name]} ssl crt {material.folder}/{kind}.pem alpn http/1.1 backlog 4096
    default_backend {"echo" if name in ECHO_LISTENERS else "web"}
"""
        for name, kind in CERTIFICATES.items()
        if name in ports
    )
    tcp = (
        f"""
listen tcp
    mode tcp
    bind 127.0.0.1:{ports["tcp"]} backlog 4096
    option {splice}
    server web 127.0.0.1:{material.backend}
"""
        if "tcp" in ports
        else ""
    )
    passthrough = (
        f"""
frontend passthrough
    mode tcp
    bind 127.0.0.1:{ports["passthrough"]} backlog 4096
    option {splice}
    tcp-request inspect-delay 5s
    tcp-request content accept if {{ req.ssl_hello_type 1 }}
    use_backend terminator if {{ req.ssl_sni -i {PASSED_THROUGH} }}

backend terminator
    mode tcp
    option {splice}
    server terminator 127.0.0.1:{material.tls}
"""
        if "passthrough" in ports
        else ""
    )
    echo = (
        f"""
frontend echo_http
    bind 127.0.0.1:{ports["echo_http"]} backlog 4096
    default_backend echo

listen echo_tcp
    mode tcp
    bind 127.0.0.1:{ports["echo_tcp"]} backlog 4096
    server echo 127.0.0.1:{material.echo_tcp}

backend echo
    server echo 127.0.0.1:{material.echo_http} pool-max-conn {IDLE_UPSTREAM_MAX} pool-purge-delay 600s
"""
        if "echo_http" in ports
        else ""
    )
    http = (
        f"""
frontend http
    bind 127.0.0.1:{ports["http"]} backlog 4096
{rules}    default_backend web
"""
        if "http" in ports
        else ""
    )
    return f"""global
    nbthread 1
    maxconn {HAPROXY_CONNECTIONS_MAX}
    ssl-default-bind-options ssl-min-ver TLSv1.3
    ssl-default-bind-ciphersuites TLS_AES_128_GCM_SHA256
    ssl-default-bind-curves X25519
    tune.ssl.cachesize 20000
    tune.ssl.lifetime 300
    tune.bufsize {65536 if tuning.bulk else 16384}
    tune.maxpollevents 200
    tune.pipesize 1048576

defaults
    mode http
    timeout connect 5s
    timeout client 600s
    timeout server 600s
    timeout http-keep-alive 600s
    http-reuse always
    option splice-auto
    option http-keep-alive
    timeout tunnel 600s
{tls}{http}{tcp}{passthrough}{echo}
backend web
    server web 127.0.0.1:{material.backend} pool-max-conn {IDLE_UPSTREAM_MAX} pool-purge-delay 600s

backend marked
    server marked 127.0.0.1:{material.marked} pool-max-conn {IDLE_UPSTREAM_MAX} pool-purge-delay 600s
"""


def evergate_config(material: Material, ports: Ports, rules: str = "", audit: str = "") -> str:
    """`audit`: the table of audited capture; then all TLS listeners are audited."""
    listeners = ""
    for name, port in ports.by_listener.items():
        protocol = "https" if name in CERTIFICATES else "tcp" if name in TCP_LISTENERS else "http"
        if name in PASSTHROUGH_LISTENERS:
            listeners += passthrough_listener(name, port)
            continue
        pool = {"echo_tcp": "echo_tcp"}.get(name, "echo" if name in ECHO_LISTENERS else "web")
        listeners += f"""
[[listeners]]
name = "{name}"
address = "127.0.0.1:{port}"
protocol = "{protocol}"
pool = "{pool}"
"""
        listeners += f'certificates = ["{CERTIFICATES[name]}"]\n' if protocol == "https" else ""
        listeners += "audit = true\n" if audit and protocol == "https" else ""
    certificates = "".join(
        f"""
[[certificates]]
name = "{kind}"
chain = "{material.certificate(kind)}"
key = "{material.key(kind)}"
"""
        for kind in ("ecdsa", "rsa")
        if any(CERTIFICATES.get(name) == kind for name in ports.by_listener)
    )
    servers = [("web", material.backend)] if "http" in ports else []
    servers += [("marked", material.marked)] if rules else []
    servers += [("terminator", material.tls)] if "passthrough" in ports else []
    if "echo_http" in ports:
        servers += [("echo", material.echo_http), ("echo_tcp", material.echo_tcp)]
    pools = "".join(
        f"""
[[pools]]
name = "{name}"
keep_alive_idle_max = {IDLE_UPSTREAM_MAX}
keep_alive_idle_ms = 600_000

[[pools.servers]]
address = "127.0.0.1:{port}"
"""
        for name, port in servers
    )
    return f"""[node]
workers = 1

[logs]
access = "off"

[admin]
socket = "off"

[timeouts]
keep_alive_ms = 600_000
{listeners}{certificates}{pools}{rules}{audit}"""


def passthrough_listener(name: str, port: int) -> str:
    """A listener without a pool of its own, and the rule that chooses one by the name in the ClientHello."""
    return f"""
[[listeners]]
name = "{name}"
address = "127.0.0.1:{port}"
protocol = "passthrough"

[[rules]]
name = "terminator"
listeners = ["{name}"]
when = 'tls.sni == "{PASSED_THROUGH}"'
route = "terminator"
"""
