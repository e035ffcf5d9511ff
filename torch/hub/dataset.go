package hub

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

const (
	cardFile = "README.md"
	// convertedRef is the branch where the Hub keeps datasets of any format as parquet.
	convertedRef = "refs/convert/parquet"
)

// Dataset finds the files of a dataset's split, in the order in which they are to be read: a file is itself; in a
// folder, or a repository of the Hub named as for Model, the first of these that there is: the data_files that
// README.md gives the configuration in its YAML; data/SPLIT-*.parquet; SPLIT*.parquet, .jsonl, .json or .csv,
// with .gz or without; and for a repository the Hub's own conversion to parquet. Without YAML a configuration is
// a folder. config may be "" where there is one or a default one.
func (c *Client) Dataset(ctx context.Context, dataset, config, split string) ([]string, error) {
	if split == "" {
		return nil, fmt.Errorf("dataset %s: name a split", dataset)
	}
	if info, err := os.Stat(dataset); err == nil {
		if !info.IsDir() {
			return []string{dataset}, nil
		}
		names, err := chooseLocal(dataset, config, split)
		if err != nil {
			return nil, fmt.Errorf("dataset folder %s: %w", dataset, err)
		}
		return under(dataset, names), nil
	} else if !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("dataset: %w", err)
	}
	r, err := parseRepo(datasetKind, dataset)
	if err != nil {
		return nil, fmt.Errorf("dataset %q does not exist, and it names no repository: %w", dataset, err)
	}
	files, err := c.dataset(ctx, r, func(t *tree) ([]string, error) { return t.choose(ctx, config, split) })
	var none noData
	if errors.As(err, &none) && r.revision == mainBranch {
		r := repo{kind: r.kind, id: r.id, revision: convertedRef}
		converted, cerr := c.dataset(ctx, r, func(t *tree) ([]string, error) { return chooseConverted(t.names(), config, split) })
		if cerr == nil {
			return converted, nil
		}
		err = fmt.Errorf("%w; its conversion to parquet: %w", err, cerr)
	}
	var nothing unknown
	if errors.As(err, &nothing) {
		return nil, fmt.Errorf("dataset %q is neither a file nor a folder, and %w", dataset, err)
	}
	if err != nil {
		return nil, fmt.Errorf("dataset %s: %w", r, err)
	}
	return files, nil
}

// dataset fetches the files that choose chooses.
func (c *Client) dataset(ctx context.Context, r repo, choose func(*tree) ([]string, error)) ([]string, error) {
	s, err := c.session(r)
	if err != nil {
		return nil, err
	}
	var names []string
	t, err := s.at(ctx, func(*tree) bool { return false }, func(t *tree) (err error) {
		if names, err = choose(t); err != nil {
			return err
		}
		return t.fetch(ctx, append(names, lostShards(names)...))
	})
	if err != nil {
		return nil, err
	}
	return under(t.snapshot(t.commit), names), nil
}

func (t *tree) choose(ctx context.Context, config, split string) ([]string, error) {
	var card []byte
	if len(t.has(cardFile)) > 0 {
		if err := t.fetch(ctx, []string{cardFile}); err != nil {
			return nil, err
		}
		var err error
		if card, err = os.ReadFile(filepath.Join(t.snapshot(t.commit), cardFile)); err != nil {
			return nil, err
		}
	}
	return choose(t.names(), card, config, split)
}

func chooseLocal(dir, config, split string) ([]string, error) {
	var names []string
	err := filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case path != dir && strings.HasPrefix(entry.Name(), "."):
			if entry.IsDir() {
				return fs.SkipDir
			}
		case !entry.IsDir():
			name, err := filepath.Rel(dir, path)
			if err != nil {
				return err
			}
			names = append(names, filepath.ToSlash(name))
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	card, err := os.ReadFile(filepath.Join(dir, cardFile))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	names, err = choose(names, card, config, split)
	if lost := lostShards(names); err == nil && len(lost) > 0 {
		err = fmt.Errorf("it lacks %s", some(lost))
	}
	return names, err
}

func under(dir string, names []string) []string {
	paths := make([]string, len(names))
	for i, name := range names {
		paths[i] = filepath.Join(dir, filepath.FromSlash(name))
	}
	return paths
}

// noData is the error of a dataset without files of a split where they are looked for.
type noData struct{ error }

var dataPattern = regexp.MustCompile(`\.(parquet|jsonl|json|csv)(\.gz)?$`)

// choose picks a split's files among sorted names.
func choose(names []string, card []byte, config, split string) ([]string, error) {
	configs, err := parseCard(card)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", cardFile, err)
	}
	base := config
	if len(configs) > 0 {
		c, err := pick(configs, config)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", cardFile, err)
		}
		if len(c.splits) > 0 {
			return c.files(names, split)
		}
		base = c.dir
	}
	if base != "" {
		base += "/"
	}
	if found := beginning(names, base+"data/"+split, `^-[^/]*\.parquet$`); len(found) > 0 {
		return found, nil
	}
	for _, extension := range []string{"parquet", "jsonl", "json", "csv"} {
		// What follows the split's name is no letter: training.csv is no file of train.
		if found := beginning(names, base+split, `^([-._0-9][^/]*)?\.`+extension+`(\.gz)?$`); len(found) > 0 {
			return found, nil
		}
	}
	return nil, noData{fmt.Errorf("there is no %sdata/%s-*.parquet and no %s%s*.parquet, .jsonl, .json or .csv", base, split, base, split)}
}

// chooseConverted picks a split's files in the Hub's conversion: CONFIG/SPLIT/0000.parquet.
func chooseConverted(names []string, config, split string) ([]string, error) {
	var configs []string
	for _, name := range names {
		if top, _, nested := strings.Cut(name, "/"); nested && !slices.Contains(configs, top) {
			configs = append(configs, top)
		}
	}
	switch {
	case config != "":
	case slices.Contains(configs, "default"):
		config = "default"
	case len(configs) == 1:
		config = configs[0]
	default:
		return nil, fmt.Errorf("name one of the configurations %s", strings.Join(configs, ", "))
	}
	found := beginning(names, config+"/"+split, `^/[^/]*\.parquet$`)
	if len(found) == 0 {
		return nil, fmt.Errorf("there is no %s/%s/*.parquet", config, split)
	}
	return found, nil
}

// beginning keeps the names that are a prefix and what an expression matches.
func beginning(names []string, prefix, rest string) []string {
	expression := regexp.MustCompile(rest)
	return slices.DeleteFunc(slices.Clone(names), func(name string) bool {
		after, ok := strings.CutPrefix(name, prefix)
		return !ok || !expression.MatchString(after)
	})
}

var shardPattern = regexp.MustCompile(`^(.*-)(\d{5})-of-(\d{5})(\..*)$`)

// lostShards are the names of shards that the others' names, such as train-00000-of-00002.parquet, promise.
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

// some names the first of names.
func some(names []string) string {
	if len(names) <= 3 {
		return strings.Join(names, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(names[:3], ", "), len(names)-3)
}
