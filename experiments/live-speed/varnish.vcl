# Varnish as a caching relay of low-latency HLS. `@NAME@` is filled in by run.py.
# `do_stream` is Varnish's default: a busy object is sent to all that wait for it as it arrives. Cache times are the source's.
vcl 4.1;

backend parent {
  .host = "127.0.0.1";
  .port = "@PARENT@";
  .first_byte_timeout = 10s;
  .between_bytes_timeout = 10s;
}

sub vcl_backend_response {
  # A playlist that is over must not be sent again.
  set beresp.grace = 0s;
  set beresp.do_stream = true;
}
