package hub

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"
)

// maxListing bounds a listing, which takes about 300 bytes per file.
const maxListing = 256 << 20

// file describes a file of a repository.
type file struct {
	size int64  // -1 if the Hub does not say
	git  string // git's SHA-1 of the file, or of its LFS pointer; "" if the Hub does not say
}

// files are a repository's files by slash-separated name.
type files map[string]file

// has returns the names that exist.
func (f files) has(names ...string) []string {
	return slices.DeleteFunc(slices.Clone(names), func(name string) bool { _, ok := f[name]; return !ok })
}

// lacks returns the names that do not exist.
func (f files) lacks(names ...string) []string {
	return slices.DeleteFunc(slices.Clone(names), func(name string) bool { _, ok := f[name]; return ok })
}

// names returns all names, sorted.
func (f files) names() []string { return slices.Sorted(maps.Keys(f)) }

// tree is a repository at one commit.
type tree struct {
	*session
	files
	commit string
	cached bool // only the cached files are known, and there is no network
}

// absence is the error of a cached tree that lacks a file.
func (t *tree) absence(what string) error {
	return fmt.Errorf("%s: not in the cache %s, and %s forbids downloads", what, t.dir, t.offlineVar)
}

// at calls read with the repository's tree and then records the commit of the revision. read fetches what it needs. at
// uses the cached tree if the network is forbidden, if the cache knows everything about a pinned commit, or if the Hub
// does not respond and the cache is sufficient.
func (s *session) at(ctx context.Context, settled func(*tree) bool, read func(*tree) error) (*tree, error) {
	cached, err := s.inCache()
	if err != nil {
		return nil, err
	}
	if s.offlineVar != "" {
		if cached.commit == "" {
			return nil, unknown{fmt.Errorf("nothing of %s is in the cache %s while %s forbids downloads", s.repo, s.dir, s.offlineVar)}
		}
		return cached, read(cached)
	}
	usable := cached.commit != "" && read(cached) == nil
	if usable && (s.pinned() || s.shortens(cached.commit)) && settled(cached) {
		return cached, nil
	}
	listed, err := s.list(ctx, !usable)
	if err == nil {
		if err := read(listed); err != nil {
			return nil, err
		}
		return listed, s.setCommit(s.revision, listed.commit)
	}
	var gone missingRevision
	if usable && ctx.Err() == nil && !errors.As(err, &gone) {
		s.warn(fmt.Sprintf("%s %s: %v; using commit %s from the cache", s.kind, s.repo, err, cached.commit))
		return cached, nil
	}
	return nil, err
}

// inCache is the tree of the commit that the revision pointed at when last seen; its commit is "" if it was never
// seen.
func (s *session) inCache() (*tree, error) {
	t := &tree{session: s, commit: s.revision, cached: true}
	var err error
	if !s.pinned() {
		if t.commit, err = s.store.commit(s.revision); t.commit == "" && err == nil {
			t.commit, err = s.store.begins(s.revision)
		}
		if t.commit == "" {
			return t, err
		}
	}
	if t.files, err = s.store.files(t.commit); err != nil {
		return nil, err
	}
	if len(t.files) == 0 {
		t.commit = ""
	}
	return t, nil
}

// list asks the Hub for the tree, with retries if patiently is set.
func (s *session) list(ctx context.Context, patiently bool) (*tree, error) {
	address := s.Endpoint + "/api/" + s.kind + "s/" + s.id + "/revision/" + url.PathEscape(s.revision) + "?blobs=true"
	t := &tree{session: s}
	ask := func() (further bool, err error) {
		return false, s.Call(ctx, http.MethodGet, address, http.Header{}, s.answerTimeout, func(r *http.Response) error {
			if r.StatusCode != http.StatusOK {
				return s.refused(r, "")
			}
			data, err := io.ReadAll(io.LimitReader(r.Body, maxListing+1))
			if err != nil {
				return err
			}
			if t.commit, t.files, err = parseListing(data); err != nil {
				return fmt.Errorf("%s lists it in an unknown format: %w", s.Endpoint, err)
			}
			return nil
		})
	}
	if !patiently {
		_, err := ask()
		return t, err
	}
	return t, s.Retry(ctx, ask)
}

// parseListing reads commit and file sizes from the response of /api/models/ID/revision/REVISION. It drops names that
// could leave a folder.
func parseListing(data []byte) (commit string, found files, err error) {
	if len(data) > maxListing {
		return "", nil, fmt.Errorf("more than %d bytes", maxListing)
	}
	var list struct {
		Commit string `json:"sha"`
		Files  []struct {
			Name string `json:"rfilename"`
			Size *int64 `json:"size"`
			Git  string `json:"blobId"`
		} `json:"siblings"`
	}
	if err := json.Unmarshal(data, &list); err != nil {
		return "", nil, err
	}
	if !commitPattern.MatchString(list.Commit) {
		return "", nil, fmt.Errorf("sha is %.60q, want a commit", list.Commit)
	}
	found = files{}
	for _, f := range list.Files {
		if !plainPath(f.Name) {
			continue
		}
		size := int64(-1)
		if f.Size != nil && *f.Size >= 0 {
			size = *f.Size
		}
		found[f.Name] = file{size: size, git: f.Git}
	}
	return list.Commit, found, nil
}

// address is the URL of a file.
func (t *tree) address(name string) string {
	parts := strings.Split(name, "/")
	for i, part := range parts {
		parts[i] = url.PathEscape(part)
	}
	return t.Endpoint + "/" + t.page() + "/resolve/" + t.commit + "/" + strings.Join(parts, "/")
}
