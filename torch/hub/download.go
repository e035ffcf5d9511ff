package hub

import (
	"context"
	"crypto/sha1"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"syscall"
)

const (
	atOnce = 4 // downloads at the same time
	// maxUnsized limits files of unknown size. The Hub states the size of every large file.
	maxUnsized = 1 << 30
	// furtherBy is the minimum progress of an attempt, in bytes, that resets the count of failures.
	furtherBy = 1 << 20
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
	var disk syscall.Statfs_t
	if err := syscall.Statfs(t.dir, &disk); err != nil {
		return nil // writing will show
	}
	if free := int64(disk.Bavail) * int64(disk.Bsize); free < bytes {
		// Partial downloads count in full: they are small, or the disk is almost full.
		return fmt.Errorf("the disk of %s has %d MB free, the download needs %d MB; free some space or set HF_HOME to another disk", t.dir, free/1e6, bytes/1e6)
	}
	return nil
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
		if errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) {
			return fmt.Errorf("the disk of %s is full; free some space or set HF_HOME to another disk, then run again: %w", t.dir, err)
		}
		return err
	}
	return t.link(t.commit, name, etag)
}

var etagPattern = regexp.MustCompile(`^\w[\w.-]{0,127}$`)

// head asks for a file's ETag, which names its blob, and its size; size is -1 if the Hub does not state it.
func (t *tree) head(ctx context.Context, name string) (etag string, size int64, err error) {
	err = t.retry(ctx, func() (bool, error) {
		return false, t.call(ctx, http.MethodHead, t.address(name), http.Header{}, t.answerTimeout, func(r *http.Response) error {
			etag = r.Header.Get("X-Linked-Etag")
			switch {
			case r.StatusCode >= 400:
				return t.refused(r, name)
			case etag == "" && r.StatusCode == http.StatusOK:
				etag = r.Header.Get("ETag")
			}
			etag = strings.Trim(strings.TrimPrefix(etag, "W/"), `"`)
			if !etagPattern.MatchString(etag) {
				return fmt.Errorf("%s gives it the ETag %.140q, which is not a valid file name; check HF_ENDPOINT", t.endpoint, etag)
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

// transfer is a file being downloaded into the cache.
type transfer struct {
	*tree
	name      string
	file      *os.File
	hash      func(size int64) hash.Hash // its digest of the file's bytes is the ETag; nil if none is known
	size      int64                      // -1 if unknown
	offset    int64                      // bytes received
	best      int64                      // the largest offset that counted as progress
	validator string                     // the strong ETag of the response that the bytes are from
}

// receive downloads a blob into ETAG.incomplete, continuing a partial file, checks it and renames it. The caller holds
// the lock.
func (t *tree) receive(ctx context.Context, name, etag string, size int64) error {
	path := t.blob(etag) + ".incomplete"
	file, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o666)
	if err != nil {
		return err
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return err
	}
	d := &transfer{tree: t, name: name, file: file, hash: t.digest(name, etag), size: size, offset: info.Size()}
	d.advance(d.offset, 0)
	// Only a checksum can tell whether an earlier process left the correct beginning of the file.
	if d.hash == nil || size >= 0 && d.offset > size {
		if err := d.restart(); err != nil {
			return err
		}
	}
	for {
		resumed := d.offset > 0
		if err := d.retry(ctx, func() (bool, error) { return d.attempt(ctx) }); err != nil {
			return err
		}
		if d.hash == nil {
			break
		}
		h := d.hash(d.offset)
		if _, err := io.Copy(h, io.NewSectionReader(file, 0, d.offset)); err != nil {
			return fmt.Errorf("checking it: %w", err)
		}
		sum := hex.EncodeToString(h.Sum(nil))
		if sum == etag {
			break
		}
		if err := d.restart(); err != nil {
			return err
		}
		if !resumed {
			_ = os.Remove(path)
			return fmt.Errorf("the download has checksum %s, the Hub announces %s; it was removed: try again", sum, etag)
		}
	}
	if err := file.Sync(); err != nil {
		return err
	}
	return os.Rename(path, t.blob(etag))
}

// restart discards the partial file.
func (d *transfer) restart() error {
	if d.offset == 0 {
		return nil
	}
	d.advance(-d.offset, 0)
	d.offset, d.validator = 0, ""
	return d.file.Truncate(0)
}

// attempt requests the missing bytes once.
func (d *transfer) attempt(ctx context.Context) (further bool, err error) {
	if d.offset == d.size {
		return false, d.file.Truncate(d.size)
	}
	header := http.Header{}
	if d.offset > 0 {
		header.Set("Range", fmt.Sprintf("bytes=%d-", d.offset))
		if d.validator != "" {
			header.Set("If-Range", d.validator)
		}
	}
	err = d.call(ctx, http.MethodGet, d.address(d.name), header, d.bytesTimeout, d.accept)
	if further = d.offset >= d.best+furtherBy; further {
		d.best = d.offset
	}
	return further, err
}

// accept reads the bytes of a response.
func (d *transfer) accept(r *http.Response) error {
	from := fmt.Sprintf("bytes %d-", d.offset)
	switch {
	case r.StatusCode == http.StatusPartialContent && strings.HasPrefix(r.Header.Get("Content-Range"), from):
	case r.StatusCode == http.StatusOK:
		if err := d.restart(); err != nil {
			return err
		}
	case r.StatusCode == http.StatusPartialContent, d.offset > 0 && r.StatusCode == http.StatusRequestedRangeNotSatisfiable:
		if err := d.restart(); err != nil {
			return err
		}
		return temporary{error: fmt.Errorf("%s sent another part than asked for", r.Request.URL.Host)}
	default:
		return d.refused(r, d.name)
	}
	if tag := r.Header.Get("ETag"); !strings.HasPrefix(tag, "W/") {
		d.validator = tag
	}
	buffer := make([]byte, 256<<10)
	for {
		n, err := r.Body.Read(buffer)
		if d.size < 0 && d.offset+int64(n) > d.unsized {
			return fmt.Errorf("%s sends more than %d bytes of a file of unknown size", r.Request.URL.Host, d.unsized)
		}
		if d.size >= 0 && d.offset+int64(n) > d.size {
			return fmt.Errorf("%s sends more than the %d bytes that the Hub announces", r.Request.URL.Host, d.size)
		}
		if _, err := d.file.WriteAt(buffer[:n], d.offset); err != nil {
			return err
		}
		d.offset += int64(n)
		d.advance(int64(n), 0)
		switch {
		case err == io.EOF && d.offset < d.size:
			return temporary{error: fmt.Errorf("the connection ended after %d of %d bytes", d.offset, d.size)}
		case err == io.EOF:
			d.size = d.offset
			return nil
		case err != nil:
			return err
		}
	}
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
