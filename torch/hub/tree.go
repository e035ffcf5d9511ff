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

// maxListing bounds what is read of a listing: some 300 bytes a file.
const maxListing = 256 << 20

// file is what is known of a repository's file.
type file struct {
	size int64  // -1 where the Hub does not say
	git  string // git's SHA-1 of the file, or of what stands for it in git; "" where the Hub does not say
}

// files are a repository's files by slash-separated name.
type files map[string]file

// has keeps those of the names that there are.
func (f files) has(names ...string) []string {
	return slices.DeleteFunc(slices.Clone(names), func(name string) bool { _, ok := f[name]; return !ok })
}

// lacks keeps the others.
func (f files) lacks(names ...string) []string {
	return slices.DeleteFunc(slices.Clone(names), func(name string) bool { _, ok := f[name]; return ok })
}

// names are all of them, sorted.
func (f files) names() []string { return slices.Sorted(maps.Keys(f)) }

// tree is a repository at one commit.
type tree struct {
	*session
	files
	commit string
	cached bool // the files are those in the cache, and there is no way to more
}

// absence is the error of a tree in the cache without something.
func (t *tree) absence(what string) error {
	return fmt.Errorf("%s: not in the cache %s, and %s forbids downloads", what, t.dir, t.offlineVar)
}

// at calls read with the repository's tree and records afterwards what its revision points at. read fetches
// what it needs. The tree is the cache's where the network is forbidden, where the cache holds all that is to be
// known of a commit, and where the Hub does not list it but the cache has what read needs.
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

// inCache is the tree of the commit that the revision pointed at when last seen, of no commit where it never was.
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

// list asks the Hub for the tree, patiently or once.
func (s *session) list(ctx context.Context, patiently bool) (*tree, error) {
	address := s.endpoint + "/api/" + s.kind + "s/" + s.id + "/revision/" + url.PathEscape(s.revision) + "?blobs=true"
	t := &tree{session: s}
	ask := func() (further bool, err error) {
		return false, s.call(ctx, http.MethodGet, address, http.Header{}, s.answerTimeout, func(r *http.Response) error {
			if r.StatusCode != http.StatusOK {
				return s.refused(r, "")
			}
			data, err := io.ReadAll(io.LimitReader(r.Body, maxListing+1))
			if err != nil {
				return err
			}
			if t.commit, t.files, err = parseListing(data); err != nil {
				return fmt.Errorf("%s lists it in a form that is not the Hub's: %w", s.endpoint, err)
			}
			return nil
		})
	}
	if !patiently {
		_, err := ask()
		return t, err
	}
	return t, s.retry(ctx, ask)
}

// parseListing reads the commit and the files' sizes from the answer of /api/models/ID/revision/REVISION. Names
// that could leave a folder are left out.
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

// address is where the Hub delivers a file.
func (t *tree) address(name string) string {
	parts := strings.Split(name, "/")
	for i, part := range parts {
		parts[i] = url.PathEscape(part)
	}
	return t.endpoint + "/" + t.page() + "/resolve/" + t.commit + "/" + strings.Join(parts, "/")
}
