// Client of three connections: requests on a persistent one, a download, an upload. Each opens one connection and may use
// no second one: the transport reports the connection of every request, and dialling again is an error.
//
//	client PEM ADDRESS TLS-VERSION NAME REQUESTS SEED <UPLOAD
package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"math/rand"
	"net"
	"net/http"
	"net/http/httptrace"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"time"
)

const patience = 120 * time.Second

// Client whose requests all use one connection.
type client struct {
	http  http.Client
	port  atomic.Int64 // local port of the connection; 0 before there is one
	count int
}

func newClient(roots *x509.CertPool, address string, version uint16) *client {
	c := new(client)
	dial := func(ctx context.Context, network, _ string) (net.Conn, error) {
		connection, err := new(net.Dialer).DialContext(ctx, network, address)
		if err == nil && !c.port.CompareAndSwap(0, int64(port(connection))) {
			return nil, fmt.Errorf("a second connection, from port %d", port(connection))
		}
		return connection, err
	}
	config := &tls.Config{RootCAs: roots, MinVersion: version, MaxVersion: version, NextProtos: []string{"http/1.1"}}
	c.http = http.Client{Timeout: patience, Transport: &http.Transport{DialContext: dial, TLSClientConfig: config}}
	return c
}

func port(connection net.Conn) int {
	return connection.LocalAddr().(*net.TCPAddr).Port
}

// Sends one request, which must use the connection of the previous requests.
func (c *client) ask(method, path string, body io.Reader) (*http.Response, error) {
	request, err := http.NewRequest(method, "https://shop.test"+path, body)
	if err != nil {
		return nil, err
	}
	var got *httptrace.GotConnInfo
	trace := &httptrace.ClientTrace{GotConn: func(info httptrace.GotConnInfo) { got = &info }}
	response, err := c.http.Do(request.WithContext(httptrace.WithClientTrace(request.Context(), trace)))
	if err != nil {
		return nil, err
	}
	if got == nil || got.Reused != (c.count > 0) || int64(port(got.Conn)) != c.port.Load() {
		return nil, fmt.Errorf("request %d went over another connection: %+v", c.count, got)
	}
	c.count++
	if response.StatusCode != http.StatusOK || response.ProtoMajor != 1 {
		return nil, fmt.Errorf("%s %s: %s %s", method, path, response.Proto, response.Status)
	}
	return response, nil
}

// Sends one request whose answer must be this text.
func (c *client) expect(method, path string, body io.Reader, wanted string) error {
	response, err := c.ask(method, path, body)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	said, err := io.ReadAll(response.Body)
	if err == nil && string(said) != wanted {
		err = fmt.Errorf("%s %s: %.100q instead of %q", method, path, said, wanted)
	}
	return err
}

func kept(c *client, requests int, seed int64) (string, error) {
	pauses, body := rand.New(rand.NewSource(seed)), make([]byte, 50000)
	for at := range body {
		body[at] = byte(uint64(at) * 0x9e3779b97f4a7c15 >> 56)
	}
	for number := 0; number < requests; number++ {
		if pauses.Intn(20) == 0 {
			time.Sleep(time.Duration(pauses.Intn(40)) * time.Millisecond)
		}
		var err error
		if number%10 == 9 {
			err = c.expect("POST", "/take", bytes.NewReader(body), fmt.Sprint("whole ", len(body)))
		} else {
			err = c.expect("GET", fmt.Sprint("/n/", number), nil, strconv.Itoa(number))
		}
		if err != nil {
			return "", fmt.Errorf("request %d: %w", number, err)
		}
	}
	return fmt.Sprint("kept ", requests), nil
}

func download(c *client, name string) (string, error) {
	response, err := c.ask("GET", "/stream/"+name, nil)
	if err != nil {
		return "", err
	}
	defer response.Body.Close()
	hash := sha256.New()
	count, err := io.Copy(hash, response.Body)
	return fmt.Sprintf("down %d %x", count, hash.Sum(nil)), err
}

// Uploads standard input, without a length in the head.
func upload(c *client) (string, error) {
	response, err := c.ask("POST", "/take", os.Stdin)
	if err != nil {
		return "", err
	}
	defer response.Body.Close()
	said, err := io.ReadAll(response.Body)
	return "up " + string(said), err
}

func main() {
	pem, address, version, name := os.Args[1], os.Args[2], os.Args[3], os.Args[4]
	requests, err := strconv.Atoi(os.Args[5])
	check(err)
	seed, err := strconv.ParseUint(os.Args[6], 10, 64)
	check(err)
	text, err := os.ReadFile(pem)
	check(err)
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(text)
	number := map[string]uint16{"1.2": tls.VersionTLS12, "1.3": tls.VersionTLS13}[version]
	type outcome struct {
		said string
		err  error
	}
	var outcomes [3]chan outcome
	jobs := []func(*client) (string, error){
		func(c *client) (string, error) { return kept(c, requests, int64(seed)) },
		func(c *client) (string, error) { return download(c, name) },
		upload,
	}
	for at, job := range jobs {
		outcomes[at] = make(chan outcome, 1)
		go func(job func(*client) (string, error), done chan outcome) {
			said, err := job(newClient(roots, address, number))
			done <- outcome{said, err}
		}(job, outcomes[at])
	}
	var lines []string
	for _, done := range outcomes {
		outcome := <-done
		check(outcome.err)
		lines = append(lines, outcome.said)
	}
	fmt.Println(strings.Join(lines, "\n"))
}

func check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
