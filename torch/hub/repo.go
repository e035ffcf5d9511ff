package hub

import (
	"errors"
	"fmt"
	"path/filepath"
	"regexp"
	"strings"
)

const (
	modelKind   = "model"
	datasetKind = "dataset"
	mainBranch  = "main"
)

// repo is a repository of the Hub at a revision.
type repo struct {
	kind     string // modelKind or datasetKind
	id       string // org/name, or only the name for the oldest ones
	revision string // a branch, tag, commit or other ref
}

var (
	idPattern       = regexp.MustCompile(`^(\w([\w.-]{0,94}\w)?/)?\w([\w.-]{0,94}\w)?$`)
	revisionPattern = regexp.MustCompile(`^[\w.+@%/-]{1,200}$`)
	shortPattern    = regexp.MustCompile(`^[0-9a-f]{7,39}$`)
	commitPattern   = regexp.MustCompile(`^[0-9a-f]{40}$`)
)

// parseRepo reads org/name or org/name@revision by the Hub's naming rules.
func parseRepo(kind, text string) (repo, error) {
	id, revision, given := strings.Cut(text, "@")
	if !idPattern.MatchString(id) || strings.Contains(id, "--") || strings.Contains(id, "..") || strings.HasSuffix(id, ".git") {
		return repo{}, errors.New("want org/name or org/name@revision, with letters, digits, -, _ and . in names")
	}
	if !given {
		revision = mainBranch
	}
	// It becomes a path below refs.
	if !revisionPattern.MatchString(revision) || !plainPath(revision) {
		return repo{}, fmt.Errorf("%.120q is not a revision; want a branch, tag or commit", revision)
	}
	return repo{kind: kind, id: id, revision: revision}, nil
}

func (r repo) String() string {
	if r.revision == mainBranch {
		return r.id
	}
	return r.id + "@" + r.revision
}

// pinned reports whether the revision is a commit, which never changes.
func (r repo) pinned() bool { return commitPattern.MatchString(r.revision) }

// shortens reports whether the revision abbreviates commit.
func (r repo) shortens(commit string) bool {
	return shortPattern.MatchString(r.revision) && strings.HasPrefix(commit, r.revision)
}

// cacheName is the name of the repository's folder in the cache.
func (r repo) cacheName() string {
	return r.kind + "s--" + strings.ReplaceAll(r.id, "/", "--")
}

// page is the repository's path below the Hub's address.
func (r repo) page() string {
	if r.kind == datasetKind {
		return "datasets/" + r.id
	}
	return r.id
}

// plainPath reports whether a slash-separated name stays inside the folder it is joined to, on any system.
func plainPath(name string) bool {
	if strings.ContainsAny(name, "\\:\x00") || !filepath.IsLocal(name) {
		return false
	}
	for part := range strings.SplitSeq(name, "/") {
		if part == "" || part == "." || part == ".." {
			return false
		}
	}
	return true
}
