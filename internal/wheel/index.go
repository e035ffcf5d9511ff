package wheel

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"html"
	"io"
	"mime"
	"net/http"
	"net/url"
	"os"
	"path"
	"regexp"
	"strings"
	"time"

	"github.com/rltrain/rltrain/internal/transfer"
)

const (
	// timeout is how long an index and its file store may send nothing.
	timeout = time.Minute
	// maxPage bounds a project's page.
	maxPage = 64 << 20

	jsonType   = "application/vnd.pypi.simple.v1+json"
	acceptType = jsonType + ", application/vnd.pypi.simple.v1+html;q=0.2, text/html;q=0.1"
)

// link is a file on a project's page.
type link struct {
	address string
	sha256  string // "" if the index does not state it
}

// authorized adds logins to requests: those in an index's address, to its host alone, and those of netrc.
type authorized struct {
	next   http.RoundTripper
	logins map[string]login // by host with port, from the indexes
	netrc  map[string]login // by host
}

func (a authorized) RoundTrip(r *http.Request) (*http.Response, error) {
	found, ok := a.logins[r.URL.Host]
	if !ok {
		found, ok = a.netrc[strings.ToLower(r.URL.Hostname())]
	}
	if !ok {
		found, ok = a.netrc[""]
	}
	if ok && r.Header.Get("Authorization") == "" {
		r = r.Clone(r.Context())
		r.SetBasicAuth(found.name, found.password)
	}
	return a.next.RoundTrip(r)
}

// connect returns a client for the indexes of pip's settings, and their addresses without logins.
func (c *Client) connect(s settings) (*http.Client, []string, error) {
	transport := http.DefaultTransport.(*http.Transport).Clone()
	if s.proxy != nil {
		transport.Proxy = http.ProxyURL(s.proxy)
	}
	if s.cert != "" {
		pem, err := os.ReadFile(s.cert)
		if err != nil {
			return nil, nil, fmt.Errorf("pip's setting cert: %w", err)
		}
		roots := x509.NewCertPool()
		if !roots.AppendCertsFromPEM(pem) {
			return nil, nil, fmt.Errorf("pip's setting cert: %s has no certificates", s.cert)
		}
		transport.TLSClientConfig = &tls.Config{RootCAs: roots}
	}
	a := authorized{next: transport, logins: map[string]login{}, netrc: readNetrc()}
	plain := make([]string, len(s.indexes))
	for i, index := range s.indexes {
		u, err := url.Parse(index)
		if err != nil {
			return nil, nil, err
		}
		if u.User != nil {
			password, _ := u.User.Password()
			a.logins[u.Host] = login{u.User.Username(), password}
			u.User = nil
		}
		plain[i] = u.String()
	}
	return &http.Client{Transport: a}, plain, nil
}

// find asks the indexes in order for the wheel. Errors say what each index answered.
func (c *Client) find(ctx context.Context, client *http.Client, indexes []string, w Wheel) (*transfer.Client, string, error) {
	var faults []error
	for _, index := range indexes {
		server := transfer.New(index, client)
		if c.sleep != nil {
			server.Sleep = c.sleep
		}
		var found link
		page := index + "/" + w.Project + "/"
		err := server.Retry(ctx, func() (bool, error) {
			return false, server.Call(ctx, http.MethodGet, page, http.Header{"Accept": {acceptType}}, timeout, func(r *http.Response) (err error) {
				found, err = w.on(r)
				return err
			})
		})
		if ctx.Err() != nil {
			return nil, "", ctx.Err()
		}
		if err == nil {
			return server, found.address, nil
		}
		faults = append(faults, err)
	}
	if faults == nil {
		return nil, "", errors.New("pip's no-index forbids downloads, and no folder of its find-links has it")
	}
	return nil, "", fmt.Errorf("%w; check the network and pip's index-url (pip config list)", errors.Join(faults...))
}

// on finds the wheel on its project's page.
func (w Wheel) on(r *http.Response) (link, error) {
	index := r.Request.URL.Redacted()
	if r.StatusCode != http.StatusOK {
		return link{}, refused(r, index)
	}
	data, err := io.ReadAll(io.LimitReader(r.Body, maxPage))
	if err != nil {
		return link{}, err
	}
	kind, _, _ := mime.ParseMediaType(r.Header.Get("Content-Type"))
	var links map[string]link
	if kind == jsonType {
		if links, err = parseJSON(r.Request.URL, data); err != nil {
			return link{}, fmt.Errorf("%s is not a page of a package index: %w", index, err)
		}
	} else {
		links = parseHTML(r.Request.URL, data)
	}
	found, ok := links[w.File]
	switch {
	case len(links) == 0:
		return link{}, fmt.Errorf("%s lists no files: it is no package index, or a proxy answered with a page of its own (HTTPS_PROXY, NO_PROXY)", index)
	case !ok:
		return link{}, fmt.Errorf("%s has no %s", index, w.File)
	case found.sha256 != "" && !strings.EqualFold(found.sha256, w.SHA256):
		return link{}, fmt.Errorf("%s has another %s: SHA-256 %s, want %s", index, w.File, found.sha256, w.SHA256)
	}
	return found, nil
}

// refused is the error of a status; a busy server is asked again.
func refused(r *http.Response, what string) error {
	err := fmt.Errorf("%s answers %q", what, r.Status)
	switch {
	case r.StatusCode == http.StatusTooManyRequests || r.StatusCode >= 500:
		return transfer.Temporary{Err: err, Pause: transfer.Asked(r.Header)}
	case r.StatusCode == http.StatusUnauthorized || r.StatusCode == http.StatusForbidden:
		return fmt.Errorf("%w; put a login for %s in ~/.netrc or in pip's index-url", err, r.Request.URL.Host)
	}
	return err
}

// parseJSON reads a page of a project by PEP 691.
func parseJSON(base *url.URL, data []byte) (map[string]link, error) {
	var page struct {
		Files []struct {
			Filename string            `json:"filename"`
			URL      string            `json:"url"`
			Hashes   map[string]string `json:"hashes"`
		} `json:"files"`
	}
	if err := json.Unmarshal(data, &page); err != nil {
		return nil, err
	}
	links := map[string]link{}
	for _, file := range page.Files {
		if u, err := base.Parse(file.URL); err == nil && file.Filename != "" {
			u.Fragment = ""
			links[file.Filename] = link{u.String(), file.Hashes["sha256"]}
		}
	}
	return links, nil
}

var (
	tags  = regexp.MustCompile(`(?i)<(a|base)\s((?:"[^"]*"|'[^']*'|[^>"'])*)>`)
	hrefs = regexp.MustCompile(`(?i)(?:^|\s)href\s*=\s*(?:"([^"]*)"|'([^']*)'|([^\s"'>]+))`)
)

// parseHTML reads a page of a project by PEP 503.
func parseHTML(base *url.URL, data []byte) map[string]link {
	links := map[string]link{}
	for _, tag := range tags.FindAllSubmatch(data, -1) {
		href := hrefs.FindSubmatch(tag[2])
		if href == nil {
			continue
		}
		text := html.UnescapeString(string(href[1]) + string(href[2]) + string(href[3]))
		u, err := base.Parse(strings.TrimSpace(text))
		if err != nil {
			continue
		}
		if strings.EqualFold(string(tag[1]), "base") {
			base = u
			continue
		}
		sum := strings.TrimPrefix(u.Fragment, "sha256=")
		if sum == u.Fragment {
			sum = ""
		}
		u.Fragment = ""
		if name := path.Base(u.Path); strings.HasSuffix(name, ".whl") || strings.HasSuffix(name, ".gz") || strings.HasSuffix(name, ".zip") {
			links[name] = link{u.String(), sum}
		}
	}
	return links
}
