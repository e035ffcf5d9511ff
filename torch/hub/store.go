package hub

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/google/renameio/v2"

	"github.com/rltrain/rltrain/internal/transfer"
)

// store is one repository's folder in the cache, laid out as huggingface_hub 2.4 does:
//
//	blobs/ETAG                  the bytes of a file, or a link to them; ETAG.incomplete during the download
//	refs/REVISION               the commit that a branch or tag pointed at when last seen, without a newline
//	snapshots/COMMIT/FILE       a relative link to the blob
//	.no_exist/COMMIT/FILE       empty: the commit is known not to have this file
//
// Lock files, .locks/REPOSITORY/ETAG.lock next to it, are locked by flock(2) and never removed.
type store struct {
	dir   string
	locks string
}

func (s store) snapshot(commit string) string { return filepath.Join(s.dir, "snapshots", commit) }

func (s store) blob(etag string) string { return filepath.Join(s.dir, "blobs", etag) }

// commit is the commit that a revision pointed at when last seen, "" if it was never seen.
func (s store) commit(revision string) (string, error) {
	path := filepath.Join(s.dir, "refs", filepath.FromSlash(revision))
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR) || errors.Is(err, syscall.EISDIR) {
		return "", nil
	}
	if err != nil {
		return "", err
	}
	commit := strings.TrimSpace(string(data))
	if !commitPattern.MatchString(commit) {
		return "", fmt.Errorf("%s holds %.60q, which is not a commit; remove the file", path, commit)
	}
	return commit, nil
}

// begins is the only cached commit that the abbreviation short fits, "" if there is none or several.
func (s store) begins(short string) (string, error) {
	if !shortPattern.MatchString(short) {
		return "", nil
	}
	entries, err := os.ReadDir(filepath.Join(s.dir, "snapshots"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return "", err
	}
	found := ""
	for _, entry := range entries {
		if !commitPattern.MatchString(entry.Name()) || !strings.HasPrefix(entry.Name(), short) {
			continue
		}
		if found != "" {
			return "", nil // the Hub decides
		}
		found = entry.Name()
	}
	return found, nil
}

// setCommit records the commit that a revision points at. A read-only cache is left unchanged.
func (s store) setCommit(revision, commit string) error {
	if known, err := s.commit(revision); err == nil && known == commit {
		return nil
	}
	path := filepath.Join(s.dir, "refs", filepath.FromSlash(revision))
	err := os.MkdirAll(filepath.Dir(path), 0o777)
	if err == nil {
		err = renameio.WriteFile(path, []byte(commit), 0o644, renameio.WithTempDir(filepath.Dir(path)))
	}
	return unlessReadOnly(err)
}

// setAbsent records files that a commit does not have.
func (s store) setAbsent(commit string, names []string) error {
	for _, name := range names {
		if s.absent(commit, name) {
			continue
		}
		path := filepath.Join(s.dir, ".no_exist", commit, filepath.FromSlash(name))
		err := os.MkdirAll(filepath.Dir(path), 0o777)
		if err == nil {
			err = os.WriteFile(path, nil, 0o666)
		}
		if err != nil {
			return unlessReadOnly(err)
		}
	}
	return nil
}

// absent reports whether a commit is known not to have a file.
func (s store) absent(commit, name string) bool {
	return exists(filepath.Join(s.dir, ".no_exist", commit, filepath.FromSlash(name)))
}

func unlessReadOnly(err error) error {
	if errors.Is(err, fs.ErrPermission) || errors.Is(err, syscall.EROFS) {
		return nil
	}
	return err
}

// files lists a commit's files in the cache.
func (s store) files(commit string) (files, error) {
	found := files{}
	root := s.snapshot(commit)
	err := filepath.WalkDir(root, func(path string, _ fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil {
			return err
		}
		// A link whose blob is gone is not a file.
		if info, err := os.Stat(path); err == nil && info.Mode().IsRegular() {
			name, err := filepath.Rel(root, path)
			if err != nil {
				return err
			}
			found[filepath.ToSlash(name)] = file{size: info.Size()}
		}
		return nil
	})
	return found, err
}

// link makes a commit's file point at a blob.
func (s store) link(commit, name, etag string) error {
	path := filepath.Join(s.snapshot(commit), filepath.FromSlash(name))
	if err := os.MkdirAll(filepath.Dir(path), 0o777); err != nil {
		return err
	}
	target, err := filepath.Rel(filepath.Dir(path), s.blob(etag))
	if err != nil {
		return err
	}
	return renameio.Symlink(target, path)
}

// lock waits until no other process or goroutine downloads the blob.
func (s store) lock(ctx context.Context, etag string, waiting func()) (unlock func(), err error) {
	return transfer.Lock(ctx, filepath.Join(s.locks, etag+".lock"), waiting)
}
