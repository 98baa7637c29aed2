// Client with its own TLS sessions: each line of standard input asks for one connection. The answer is the server's line
// and whether this side counts the session as resumed.
//
// Arguments: address, server name, "1.2" or "1.3", file of the trusted authority.
package main

import (
	"bufio"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"os"
	"strings"
)

func check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func main() {
	address, name, version := os.Args[1], os.Args[2], uint16(tls.VersionTLS12)
	if os.Args[3] == "1.3" {
		version = tls.VersionTLS13
	}
	authority, err := os.ReadFile(os.Args[4])
	check(err)
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(authority)
	config := &tls.Config{ServerName: name, RootCAs: roots, MinVersion: version, MaxVersion: version,
		ClientSessionCache: tls.NewLRUClientSessionCache(4)}
	for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
		connection, err := tls.Dial("tcp", address, config)
		check(err)
		_, err = fmt.Fprintf(connection, "GET / HTTP/1.0\r\nHost: %s\r\n\r\n", name)
		check(err)
		response, err := io.ReadAll(connection)
		check(err)
		_, body, _ := strings.Cut(string(response), "\r\n\r\n")
		fmt.Println(strings.TrimSpace(body), connection.ConnectionState().DidResume)
		connection.Close()
	}
}
