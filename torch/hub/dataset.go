package hub

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
)

const (
	cardFile = "README.md"
	// convertedRef is the branch in which the Hub keeps a parquet copy of each dataset.
	convertedRef = "refs/convert/parquet"
)

// Dataset fetches files of a dataset repository, named as for Model, and returns their folder. choose gets the sorted
// file names and README.md (nil if there is none) and returns the files to fetch. If choose finds no data on branch
// main and returns an error, Dataset calls it again with the Hub's parquet copy. choose may be called several times;
// its last answer counts. All shards that a name announces, such as train-00000-of-00002.parquet, must exist.
func (c *Client) Dataset(ctx context.Context, dataset string, choose func(names []string, readme []byte) ([]string, error)) (dir string, err error) {
	r, err := parseRepo(datasetKind, dataset)
	if err != nil {
		return "", fmt.Errorf("dataset %q does not exist, and it names no repository: %w", dataset, err)
	}
	dir, err = c.dataset(ctx, r, choose)
	var none noData
	if errors.As(err, &none) && r.revision == mainBranch {
		converted := repo{kind: r.kind, id: r.id, revision: convertedRef}
		found, cerr := c.dataset(ctx, converted, choose)
		if cerr == nil {
			c.commits.Store(dataset, filepath.Base(found))
			return found, nil
		}
		err = fmt.Errorf("%w; its conversion to parquet: %w", err, cerr)
	}
	if notFound(err) {
		return "", fmt.Errorf("dataset %q is neither a file nor a folder, and %w", dataset, err)
	}
	if err != nil {
		return "", fmt.Errorf("dataset %s: %w", r, err)
	}
	c.commits.Store(dataset, filepath.Base(dir))
	return dir, nil
}

// noData is the error of a dataset in which choose found no files.
type noData struct{ error }

// dataset fetches the files that choose returns.
func (c *Client) dataset(ctx context.Context, r repo, choose func([]string, []byte) ([]string, error)) (string, error) {
	s, err := c.session(r)
	if err != nil {
		return "", err
	}
	t, err := s.at(ctx, func(*tree) bool { return false }, func(t *tree) error {
		readme, err := t.readme(ctx)
		if err != nil {
			return err
		}
		names, err := choose(t.names(), readme)
		if err != nil {
			return noData{err}
		}
		return t.fetch(ctx, append(names, lostShards(names)...))
	})
	if err != nil {
		return "", err
	}
	return t.snapshot(t.commit), nil
}

func (t *tree) readme(ctx context.Context) ([]byte, error) {
	if len(t.has(cardFile)) == 0 {
		return nil, nil
	}
	if err := t.fetch(ctx, []string{cardFile}); err != nil {
		return nil, err
	}
	return os.ReadFile(filepath.Join(t.snapshot(t.commit), cardFile))
}

var shardPattern = regexp.MustCompile(`^(.*-)(\d{5})-of-(\d{5})(\..*)$`)

// lostShards lists missing shards: names such as train-00000-of-00002.parquet announce the others.
func lostShards(names []string) []string {
	known := map[string]bool{}
	for _, name := range names {
		known[name] = true
	}
	var lost []string
	for _, name := range names {
		m := shardPattern.FindStringSubmatch(name)
		if m == nil {
			continue
		}
		total, _ := strconv.Atoi(m[3])
		if series := m[1] + m[3] + m[4]; !known[series] {
			known[series] = true
			for i := range total {
				if other := fmt.Sprintf("%s%05d-of-%s%s", m[1], i, m[3], m[4]); !known[other] {
					lost = append(lost, other)
				}
			}
		}
	}
	return lost
}

// some lists the first few names.
func some(names []string) string {
	if len(names) <= 3 {
		return strings.Join(names, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(names[:3], ", "), len(names)-3)
}
