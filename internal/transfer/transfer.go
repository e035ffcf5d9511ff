// Package transfer downloads files over HTTP: it repeats requests that fail for a while, continues partial files, and
// checks what it received.
package transfer

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"regexp"
	"strconv"
	"sync/atomic"
	"time"
)

const (
	maxFailures  = 5 // consecutive failures before a request is given up
	firstPause   = time.Second
	longestPause = 8 * time.Second
	// longestAsked is the longest pause that rltrain accepts when a server asks for one.
	longestAsked = 5 * time.Minute
)

// Client sends requests to one service and to the file stores that it redirects to.
type Client struct {
	Endpoint string // address of the service, without a trailing slash; errors name it
	HTTP     *http.Client
	Sleep    func(ctx context.Context, d time.Duration) error
	Now      func() time.Time

	reached atomic.Bool // the service has responded before
}

// New is a client with the system's clock.
func New(endpoint string, client *http.Client) *Client {
	return &Client{Endpoint: endpoint, HTTP: client, Sleep: Wait, Now: time.Now}
}

// Wait sleeps for d or until ctx ends, whose error it then returns.
func Wait(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Temporary is an error that may not occur on the next attempt.
type Temporary struct {
	Err   error
	Pause time.Duration // the delay that the server requests
}

func (t Temporary) Error() string { return t.Err.Error() }

func (t Temporary) Unwrap() error { return t.Err }

// Unreachable is the error of a service that has never responded.
type Unreachable struct{ Err error }

func (u Unreachable) Error() string { return u.Err.Error() }

func (u Unreachable) Unwrap() error { return u.Err }

// Retry calls f again after temporary errors, with growing pauses, up to maxFailures in a row. f reports whether it
// made progress.
func (c *Client) Retry(ctx context.Context, f func() (further bool, err error)) error {
	failures, pause := 0, firstPause
	for {
		further, err := f()
		var t Temporary
		if ctx.Err() != nil || !errors.As(err, &t) {
			return err
		}
		if further {
			failures, pause = 0, firstPause
		}
		if failures++; failures == maxFailures {
			return fmt.Errorf("%w; tried %d times", err, maxFailures)
		}
		if t.Pause > longestAsked {
			return err
		}
		if err := c.Sleep(ctx, max(pause, t.Pause)); err != nil {
			return err
		}
		pause = min(2*pause, longestPause)
	}
}

// Call sends one request and passes its response to use. It gives up if no byte arrives within the timeout. Connection
// errors are temporary.
func (c *Client) Call(parent context.Context, method, address string, header http.Header, timeout time.Duration, use func(*http.Response) error) error {
	ctx, cancel := context.WithCancelCause(parent)
	defer cancel(nil)
	r, err := http.NewRequestWithContext(ctx, method, address, nil)
	if err != nil {
		return err
	}
	r.Header = header
	r.Header.Set("User-Agent", "rltrain")
	r.Header.Set("Accept-Encoding", "identity") // lengths and ranges are those of the file
	timer := time.AfterFunc(timeout, func() { cancel(fmt.Errorf("%s sends nothing for %v", c.Endpoint, timeout)) })
	defer timer.Stop()
	response, err := c.HTTP.Do(r)
	timer.Stop()
	if err != nil {
		return c.lost(parent, ctx, err)
	}
	defer response.Body.Close()
	c.reached.Store(true)
	response.Body = &body{
		ReadCloser: response.Body, timer: timer, timeout: timeout, host: response.Request.URL.Host,
		now: c.Now, since: c.Now(), failed: func(err error) error { return c.lost(parent, ctx, err) },
	}
	return use(response)
}

// lost is the error of a connection, without the address, which may contain a signature.
func (c *Client) lost(parent, ctx context.Context, err error) error {
	// The caller's cancellation has its own reason, such as a signal; the service is not at fault.
	if err := parent.Err(); err != nil {
		return err
	}
	if cause := context.Cause(ctx); cause != nil {
		err = cause
	} else {
		var outer *url.Error
		if errors.As(err, &outer) {
			err = outer.Err
		}
		err = fmt.Errorf("no connection to %s: %w", c.Endpoint, err)
	}
	var certificate *tls.CertificateVerificationError
	var network *net.OpError
	// A host that has never responded is more likely unreachable than busy.
	unreachable := !c.reached.Load() && (context.Cause(ctx) != nil || errors.As(err, &network) && (network.Op == "dial" || network.Op == "proxyconnect"))
	if unreachable || errors.As(err, &certificate) {
		return Unreachable{err}
	}
	return Temporary{Err: err}
}

// A download below slowBytes in slowTime is stuck: it is restarted from its current offset.
const (
	slowTime  = time.Minute
	slowBytes = 60 << 10
)

// body reads a response. It limits each wait for bytes, and the time in which few bytes arrive. The timer runs only
// during reads, because processing the bytes may take long.
type body struct {
	io.ReadCloser
	timer   *time.Timer
	timeout time.Duration
	failed  func(error) error

	host  string
	now   func() time.Time
	since time.Time // start of the current byte count
	bytes int
}

func (b *body) Read(p []byte) (int, error) {
	b.timer.Reset(b.timeout)
	n, err := b.ReadCloser.Read(p)
	b.timer.Stop()
	if err != nil && err != io.EOF {
		return n, b.failed(err)
	}
	if b.bytes += n; err == nil && b.now().Sub(b.since) >= slowTime {
		if b.bytes < slowBytes {
			return n, Temporary{Err: fmt.Errorf("%s sends %d bytes in %v", b.host, b.bytes, b.now().Sub(b.since).Round(time.Second))}
		}
		b.since, b.bytes = b.now(), 0
	}
	return n, err
}

// resetPattern matches the reset time in a RateLimit header: "api";r=0;t=55.
var resetPattern = regexp.MustCompile(`;\s*r\s*=\s*0\s*;\s*t\s*=\s*(\d{1,6})\b`)

// Asked is the delay that a response requests; 0 for none.
func Asked(h http.Header) time.Duration {
	text := h.Get("Retry-After")
	if m := resetPattern.FindStringSubmatch(h.Get("RateLimit")); m != nil {
		text = m[1]
	}
	if n, err := strconv.Atoi(text); err == nil && n > 0 {
		return time.Duration(min(n, 1e6)) * time.Second
	}
	if at, err := http.ParseTime(text); err == nil {
		if sent, err := http.ParseTime(h.Get("Date")); err == nil {
			return max(0, at.Sub(sent))
		}
	}
	return 0
}
