package hub

import (
	"context"
	"crypto/sha1"
	"crypto/sha256"
	"fmt"
	"hash"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"

	"github.com/rltrain/rltrain/internal/transfer"
)

const (
	atOnce = 4 // downloads at the same time
	// maxUnsized limits files of unknown size. The Hub states the size of every large file.
	maxUnsized = 1 << 30
)

// fetch downloads missing files of the tree into the cache. Offline, all of them must be there already.
func (t *tree) fetch(caller context.Context, names []string) error {
	if lost := t.lacks(names...); len(lost) > 0 {
		if t.cached {
			return t.absence(some(lost))
		}
		return fmt.Errorf("it has no file %s", some(lost))
	}
	if t.cached {
		return nil
	}
	have, err := t.store.files(t.commit)
	if err != nil {
		return err
	}
	var wanted []string
	var bytes int64
	for _, name := range names {
		size := t.files[name].size
		// A truncated file, left by a crash, is fetched again.
		if cached, ok := have[name]; !ok || size >= 0 && cached.size != size {
			wanted = append(wanted, name)
			bytes += max(0, size)
		}
	}
	if len(wanted) == 0 {
		return nil
	}
	if err := t.makeRoom(bytes); err != nil {
		return err
	}
	t.advance(0, bytes)
	ctx, cancel := context.WithCancelCause(caller)
	defer cancel(nil)
	slots := make(chan struct{}, atOnce)
	var workers sync.WaitGroup
	for _, name := range wanted {
		slots <- struct{}{}
		workers.Go(func() {
			if err := t.download(ctx, name); err != nil {
				cancel(fmt.Errorf("%s: %w", name, err))
			}
			<-slots
		})
	}
	workers.Wait()
	if err := caller.Err(); err != nil {
		return err
	}
	return context.Cause(ctx)
}

// makeRoom creates the repository's folder and fails early if the disk is too small for bytes more.
func (t *tree) makeRoom(bytes int64) error {
	if err := os.MkdirAll(filepath.Join(t.dir, "blobs"), 0o777); err != nil {
		return err
	}
	// Partial downloads count in full: they are small, or the disk is almost full.
	return transfer.Room(t.dir, bytes, "HF_HOME")
}

// advance reports progress in bytes.
func (s *session) advance(done, total int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.done += done
	s.total += total
	if s.progress != nil {
		s.progress(s.repo.String(), s.done, s.total)
	}
}

// download fetches one file unless the cache has its content under another name or commit.
func (t *tree) download(ctx context.Context, name string) error {
	etag, size, err := t.head(ctx, name)
	if err != nil {
		return err
	}
	t.advance(0, max(0, size)-max(0, t.files[name].size))
	unlock, err := t.lock(ctx, etag, func() {
		t.warn(fmt.Sprintf("%s %s: waiting for another download of %s", t.kind, t.repo, name))
	})
	if err != nil {
		return err
	}
	defer unlock()
	if info, err := os.Stat(t.blob(etag)); err == nil && (size < 0 || info.Size() == size) {
		t.advance(max(0, size), 0)
	} else if err := t.receive(ctx, name, etag, size); err != nil {
		return transfer.Explain(err, t.dir, "HF_HOME")
	}
	return t.link(t.commit, name, etag)
}

var etagPattern = regexp.MustCompile(`^\w[\w.-]{0,127}$`)

// head asks for a file's ETag, which names its blob, and its size; size is -1 if the Hub does not state it.
func (t *tree) head(ctx context.Context, name string) (etag string, size int64, err error) {
	err = t.Retry(ctx, func() (bool, error) {
		return false, t.Call(ctx, http.MethodHead, t.address(name), http.Header{}, t.answerTimeout, func(r *http.Response) error {
			etag = r.Header.Get("X-Linked-Etag")
			switch {
			case r.StatusCode >= 400:
				return t.refused(r, name)
			case etag == "" && r.StatusCode == http.StatusOK:
				etag = r.Header.Get("ETag")
			}
			etag = strings.Trim(strings.TrimPrefix(etag, "W/"), `"`)
			if !etagPattern.MatchString(etag) {
				return fmt.Errorf("%s gives it the ETag %.140q, which is not a valid file name; check HF_ENDPOINT", t.Endpoint, etag)
			}
			size = t.files[name].size
			if n, err := strconv.ParseInt(r.Header.Get("X-Linked-Size"), 10, 64); err == nil && n >= 0 {
				size = n
			} else if r.StatusCode == http.StatusOK && r.ContentLength >= 0 {
				size = r.ContentLength
			}
			return nil
		})
	})
	return etag, size, err
}

// receive downloads a blob into ETAG.incomplete, continuing a partial file, checks it and renames it. The caller holds
// the lock.
func (t *tree) receive(ctx context.Context, name, etag string, size int64) error {
	d := transfer.Download{
		Client: t.Client, Address: t.address(name), Path: t.blob(etag) + ".incomplete",
		Hash: t.digest(name, etag), Sum: etag, Source: "the Hub", Size: size, Limit: t.unsized, Timeout: t.bytesTimeout,
		Refused: func(r *http.Response) error { return t.refused(r, name) },
		Advance: func(n int64) { t.advance(n, 0) },
	}
	if err := d.Receive(ctx); err != nil {
		return err
	}
	return os.Rename(d.Path, t.blob(etag))
}

var sha256Pattern = regexp.MustCompile(`^[0-9a-f]{64}$`)

// digest returns the hash that the ETag is: SHA-256 for large files, git's SHA-1 for others, nil if it is neither.
func (t *tree) digest(name, etag string) func(size int64) hash.Hash {
	switch {
	case sha256Pattern.MatchString(etag):
		return func(int64) hash.Hash { return sha256.New() }
	case commitPattern.MatchString(etag) && etag == t.files[name].git:
		return func(size int64) hash.Hash {
			h := sha1.New()
			fmt.Fprintf(h, "blob %d\x00", size)
			return h
		}
	default:
		return nil
	}
}
