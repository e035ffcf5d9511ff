package hub

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
	"strings"
	"time"
)

const (
	maxRedirects = 10
	maxFailures  = 5 // consecutive failures before a request is given up
	firstPause   = time.Second
	longestPause = 8 * time.Second
	// longestAsked is the longest pause that rltrain accepts when a server asks for one.
	longestAsked = 5 * time.Minute
)

// bearer adds the token to requests to the Hub only. Redirects lead to other hosts, and net/http would send the token
// to subdomains and other ports.
type bearer struct {
	*session
	next http.RoundTripper
}

func (b bearer) RoundTrip(r *http.Request) (*http.Response, error) {
	if b.token != "" && b.trusted(r.URL) {
		r = r.Clone(r.Context())
		r.Header.Set("Authorization", "Bearer "+b.token)
	}
	return b.next.RoundTrip(r)
}

// trusted reports whether an address belongs to the Hub: the configured one or the public one.
func (s *session) trusted(u *url.URL) bool {
	for _, hub := range []string{s.endpoint, publicHub} {
		if h, err := url.Parse(hub); err == nil && u.Scheme == h.Scheme && strings.EqualFold(u.Host, h.Host) {
			return true
		}
	}
	return false
}

// redirect stops a HEAD request at the Hub: the redirect's headers hold the answer.
func (s *session) redirect(r *http.Request, via []*http.Request) error {
	if r.Method == http.MethodHead && !s.trusted(r.URL) {
		return http.ErrUseLastResponse
	}
	if len(via) >= maxRedirects {
		return fmt.Errorf("%d redirects", maxRedirects)
	}
	return nil
}

// temporary is an error that may not occur on the next attempt.
type temporary struct {
	error
	pause time.Duration // the delay that the server requests
}

func (t temporary) Unwrap() error { return t.error }

// retry calls f again after temporary errors, with growing pauses, up to maxFailures in a row. f reports whether it
// made progress.
func (s *session) retry(ctx context.Context, f func() (further bool, err error)) error {
	failures, pause := 0, firstPause
	for {
		further, err := f()
		var t temporary
		if ctx.Err() != nil || !errors.As(err, &t) {
			return err
		}
		if further {
			failures, pause = 0, firstPause
		}
		if failures++; failures == maxFailures {
			return fmt.Errorf("%w; tried %d times", err, maxFailures)
		}
		if t.pause > longestAsked {
			return err
		}
		if err := s.sleep(ctx, max(pause, t.pause)); err != nil {
			return err
		}
		pause = min(2*pause, longestPause)
	}
}

// call sends one request and passes its response to use. It gives up if no byte arrives within the timeout. Connection
// errors are temporary.
func (s *session) call(parent context.Context, method, address string, header http.Header, timeout time.Duration, use func(*http.Response) error) error {
	ctx, cancel := context.WithCancelCause(parent)
	defer cancel(nil)
	r, err := http.NewRequestWithContext(ctx, method, address, nil)
	if err != nil {
		return err
	}
	r.Header = header
	r.Header.Set("User-Agent", "rltrain")
	r.Header.Set("Accept-Encoding", "identity") // lengths and ranges are those of the file
	timer := time.AfterFunc(timeout, func() { cancel(fmt.Errorf("%s sends nothing for %v", s.endpoint, timeout)) })
	defer timer.Stop()
	response, err := s.http.Do(r)
	timer.Stop()
	if err != nil {
		return s.lost(parent, ctx, err)
	}
	defer response.Body.Close()
	s.reached.Store(true)
	response.Body = &body{
		ReadCloser: response.Body, timer: timer, timeout: timeout, host: response.Request.URL.Host,
		now: s.now, since: s.now(), failed: func(err error) error { return s.lost(parent, ctx, err) },
	}
	return use(response)
}

// lost is the error of a connection, without the address, which may contain a signature.
func (s *session) lost(parent, ctx context.Context, err error) error {
	// The caller's cancellation has its own reason, such as a signal; the Hub is not at fault.
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
		err = fmt.Errorf("no connection to %s: %w", s.endpoint, err)
	}
	var certificate *tls.CertificateVerificationError
	var network *net.OpError
	// A host that has never responded is more likely unreachable than busy.
	unreachable := !s.reached.Load() && (context.Cause(ctx) != nil || errors.As(err, &network) && network.Op == "dial")
	if unreachable || errors.As(err, &certificate) {
		return unknown{err}
	}
	return temporary{error: err}
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
			return n, temporary{error: fmt.Errorf("%s sends %d bytes in %v", b.host, b.bytes, b.now().Sub(b.since).Round(time.Second))}
		}
		b.since, b.bytes = b.now(), 0
	}
	return n, err
}

// unknown is the error of a repository that could not be looked up: it does not exist, is not visible to this user, or
// the Hub is out of reach.
type unknown struct{ error }

// missingRevision is the error of a revision that a repository does not have.
type missingRevision struct{ error }

// refused says why the Hub did not deliver a file, or the listing if file is "".
func (s *session) refused(r *http.Response, file string) error {
	code, message := r.Header.Get("X-Error-Code"), r.Header.Get("X-Error-Message")
	page := s.endpoint + "/" + s.page()
	switch status := r.StatusCode; {
	case !s.trusted(r.Request.URL):
		// The store behind the Hub: a retry gets a fresh signature.
		return temporary{fmt.Errorf("the store at %s answers %q", r.Request.URL.Host, r.Status), asked(r.Header)}
	case code == "GatedRepo" && s.token == "":
		return fmt.Errorf("it is gated: accept its terms at %s, then set HF_TOKEN to a token of that account", page)
	case code == "GatedRepo":
		return fmt.Errorf("it is gated, and the account of the token in %s has no access: request access at %s", s.tokenFrom, page)
	case code == "RevisionNotFound":
		return missingRevision{fmt.Errorf("it has no branch, tag or commit %q", s.revision)}
	case code == "EntryNotFound", code == "" && file != "" && status == http.StatusNotFound:
		return errors.New("there is no such file")
	case status == http.StatusUnauthorized && s.token != "" && code != "RepoNotFound":
		return fmt.Errorf("the Hub does not accept the token in %s: make a new one at %s/settings/tokens", s.tokenFrom, s.endpoint)
	case code == "RepoNotFound", status == http.StatusUnauthorized, status == http.StatusNotFound:
		seen := "that the token in " + s.tokenFrom + " can access"
		if s.token == "" {
			seen = "that is visible without HF_TOKEN"
		}
		return unknown{fmt.Errorf("%s has no %s %s %s", s.endpoint, s.kind, s.id, seen)}
	case status == http.StatusTooManyRequests:
		pause, advice := asked(r.Header), "try again later"
		if pause > 0 {
			advice = fmt.Sprintf("try again in %v", pause)
		}
		if s.token == "" {
			advice += ", or set HF_TOKEN for a higher limit"
		}
		return temporary{errors.New("the Hub limits requests: " + advice), pause}
	case status == http.StatusRequestTimeout, status >= 500:
		return temporary{fmt.Errorf("%s answers %q", s.endpoint, r.Status), asked(r.Header)}
	case message != "":
		return fmt.Errorf("%s answers %q: %.200q", s.endpoint, r.Status, message)
	default:
		return fmt.Errorf("%s answers %q", s.endpoint, r.Status)
	}
}

// resetPattern matches the reset time in a RateLimit header: "api";r=0;t=55.
var resetPattern = regexp.MustCompile(`;\s*r\s*=\s*0\s*;\s*t\s*=\s*(\d{1,6})\b`)

// asked is the delay that a response requests; 0 for none.
func asked(h http.Header) time.Duration {
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
