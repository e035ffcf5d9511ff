package hub

import (
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"

	"github.com/rltrain/rltrain/internal/transfer"
)

const maxRedirects = 10

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
	for _, hub := range []string{s.Endpoint, publicHub} {
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

// unknown is the error of a repository that does not exist or is not visible to this user.
type unknown struct{ error }

// notFound reports whether a repository could not be looked up: it is unknown, or the Hub is out of reach.
func notFound(err error) bool {
	var nowhere unknown
	var silent transfer.Unreachable
	return errors.As(err, &nowhere) || errors.As(err, &silent)
}

// missingRevision is the error of a revision that a repository does not have.
type missingRevision struct{ error }

// refused says why the Hub did not deliver a file, or the listing if file is "".
func (s *session) refused(r *http.Response, file string) error {
	code, message := r.Header.Get("X-Error-Code"), r.Header.Get("X-Error-Message")
	page := s.Endpoint + "/" + s.page()
	switch status := r.StatusCode; {
	case !s.trusted(r.Request.URL):
		// The store behind the Hub: a retry gets a fresh signature.
		return transfer.Temporary{Err: fmt.Errorf("the store at %s answers %q", r.Request.URL.Host, r.Status), Pause: transfer.Asked(r.Header)}
	case code == "GatedRepo" && s.token == "":
		return fmt.Errorf("it is gated: accept its terms at %s, then set HF_TOKEN to a token of that account", page)
	case code == "GatedRepo":
		return fmt.Errorf("it is gated, and the account of the token in %s has no access: request access at %s", s.tokenFrom, page)
	case code == "RevisionNotFound":
		return missingRevision{fmt.Errorf("it has no branch, tag or commit %q", s.revision)}
	case code == "EntryNotFound", code == "" && file != "" && status == http.StatusNotFound:
		return errors.New("there is no such file")
	case status == http.StatusUnauthorized && s.token != "" && code != "RepoNotFound":
		return fmt.Errorf("the Hub does not accept the token in %s: make a new one at %s/settings/tokens", s.tokenFrom, s.Endpoint)
	case code == "RepoNotFound", status == http.StatusUnauthorized, status == http.StatusNotFound:
		seen := "that the token in " + s.tokenFrom + " can access"
		if s.token == "" {
			seen = "that is visible without HF_TOKEN"
		}
		return unknown{fmt.Errorf("%s has no %s %s %s", s.Endpoint, s.kind, s.id, seen)}
	case status == http.StatusTooManyRequests:
		pause, advice := transfer.Asked(r.Header), "try again later"
		if pause > 0 {
			advice = fmt.Sprintf("try again in %v", pause)
		}
		if s.token == "" {
			advice += ", or set HF_TOKEN for a higher limit"
		}
		return transfer.Temporary{Err: errors.New("the Hub limits requests: " + advice), Pause: pause}
	case status == http.StatusRequestTimeout, status >= 500:
		return transfer.Temporary{Err: fmt.Errorf("%s answers %q", s.Endpoint, r.Status), Pause: transfer.Asked(r.Header)}
	case message != "":
		return fmt.Errorf("%s answers %q: %.200q", s.Endpoint, r.Status, message)
	default:
		return fmt.Errorf("%s answers %q", s.Endpoint, r.Status)
	}
}
