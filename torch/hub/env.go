package hub

import (
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/rltrain/rltrain/internal/transfer"
)

const publicHub = "https://huggingface.co"

// session is one call of a Client for one repository, with the settings of the environment.
type session struct {
	repo
	store
	*transfer.Client
	token      string // "" for none
	tokenFrom  string // its source
	offlineVar string // the variable that forbids the network; "" if allowed

	answerTimeout, bytesTimeout time.Duration

	unsized int64 // maximum bytes of a file whose size the Hub does not state
	warn    func(message string)

	progress    func(repository string, done, total int64)
	mu          sync.Mutex // guards the fields below, and calls of progress
	done, total int64
}

func (c *Client) session(r repo) (*session, error) {
	home, cache, err := folders()
	if err != nil {
		return nil, err
	}
	s := &session{
		repo: r,
		store: store{
			dir: filepath.Join(cache, r.cacheName()), locks: filepath.Join(cache, ".locks", r.cacheName()),
		},
		offlineVar: offline(r.kind), warn: c.Warn, progress: c.Progress, unsized: maxUnsized,
	}
	transport := c.transport
	if transport == nil {
		transport = http.DefaultTransport
	}
	s.Client = transfer.New(publicHub, &http.Client{Transport: bearer{s, transport}, CheckRedirect: s.redirect})
	if c.sleep != nil {
		s.Sleep = c.sleep
	}
	if s.warn == nil {
		s.warn = func(string) {}
	}
	if given := strings.TrimRight(os.Getenv("HF_ENDPOINT"), "/"); given != "" {
		if u, err := url.Parse(given); err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
			return nil, fmt.Errorf("HF_ENDPOINT is %q; want an address such as %s", given, publicHub)
		}
		s.Endpoint = given
	}
	if s.token, s.tokenFrom, err = userToken(home); err != nil {
		return nil, err
	}
	if s.answerTimeout, err = seconds("HF_HUB_ETAG_TIMEOUT"); err != nil {
		return nil, err
	}
	if s.bytesTimeout, err = seconds("HF_HUB_DOWNLOAD_TIMEOUT"); err != nil {
		return nil, err
	}
	return s, nil
}

// folders returns Hugging Face's home folder and its cache of repositories, by the rules of huggingface_hub.
func folders() (home, cache string, err error) {
	user, err := homeDir()
	if err != nil {
		return "", "", fmt.Errorf("finding the home folder: %w", err)
	}
	home = expanded("HF_HOME", user)
	if home == "" {
		base := os.Getenv("XDG_CACHE_HOME")
		if base == "" {
			base = filepath.Join(user, ".cache")
		}
		home = filepath.Join(base, "huggingface")
	}
	for _, variable := range []string{"HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"} {
		if cache = expanded(variable, user); cache != "" {
			break
		}
	}
	if cache == "" {
		cache = filepath.Join(home, "hub")
	}
	cache, err = filepath.Abs(cache)
	return home, cache, err
}

// expanded is the path in a variable with ~ and nested variables expanded. Unset nested variables stay as they are.
func expanded(variable, user string) string {
	path := os.Getenv(variable)
	if path == "~" || strings.HasPrefix(path, "~/") {
		path = user + path[1:]
	}
	return os.Expand(path, func(name string) string {
		if value, ok := os.LookupEnv(name); ok {
			return value
		}
		return "$" + name
	})
}

// userToken returns the user's token and its source.
func userToken(home string) (value, from string, err error) {
	if yes("HF_HUB_DISABLE_IMPLICIT_TOKEN") {
		return "", "", nil
	}
	for _, variable := range []string{"HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"} {
		if value := strings.TrimSpace(os.Getenv(variable)); value != "" {
			return value, variable, nil
		}
	}
	user, err := homeDir()
	if err != nil {
		return "", "", fmt.Errorf("finding the home folder: %w", err)
	}
	path := expanded("HF_TOKEN_PATH", user)
	if path == "" {
		path = filepath.Join(home, "token")
	}
	data, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return "", "", fmt.Errorf("reading the token: %w", err)
	}
	return strings.TrimSpace(string(data)), path, nil
}

// offline returns the variable that forbids the network for a kind of repository, "" if none does.
func offline(kind string) string {
	// As in huggingface_hub, TRANSFORMERS_OFFLINE counts only if the newer variable is not set.
	variable := "HF_HUB_OFFLINE"
	if os.Getenv(variable) == "" {
		variable = "TRANSFORMERS_OFFLINE"
	}
	if yes(variable) {
		return variable
	}
	if kind == datasetKind && yes("HF_DATASETS_OFFLINE") {
		return "HF_DATASETS_OFFLINE"
	}
	return ""
}

func yes(variable string) bool {
	return slices.Contains([]string{"1", "ON", "YES", "TRUE"}, strings.ToUpper(os.Getenv(variable)))
}

func seconds(variable string) (time.Duration, error) {
	text := os.Getenv(variable)
	if text == "" {
		return 10 * time.Second, nil
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 || n > 86400 {
		return 0, fmt.Errorf("%s is %q; want a number of seconds from 1 to 86400", variable, text)
	}
	return time.Duration(n) * time.Second, nil
}
