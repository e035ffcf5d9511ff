package dataset

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/rltrain/rltrain/internal/smallfile"
	"github.com/rltrain/rltrain/internal/words"
)

// Part is a split of a data set ("train", "validation", "test" or another name) and its files, in reading order.
type Part struct {
	Split string
	Files []string
}

// Find returns the splits of a local data set: one file (all "train"), several files (split by name), or a folder, split by
// Choose with its README.md. config names a configuration of a folder. Data sets of the hub are found elsewhere.
func Find(config string, paths ...string) ([]Part, error) {
	for _, p := range paths {
		info, err := os.Stat(p)
		if err != nil {
			return nil, fmt.Errorf("reading data set: %w", err)
		}
		if !info.IsDir() {
			continue
		}
		if len(paths) > 1 {
			return nil, fmt.Errorf("%s is a folder; pass one folder or only files", p)
		}
		return findInFolder(config, p)
	}
	if config != "" {
		return nil, fmt.Errorf("configuration %s: only folders and hub data sets have configurations", words.Quote(config))
	}
	if len(paths) == 1 {
		return []Part{{"train", paths}}, nil
	}
	parts := divide(paths, func(p string) string { return splitWord(filepath.Base(p)) })
	for _, part := range parts {
		if part.Split == "" && len(parts) > 1 {
			return nil, fmt.Errorf("%s: the file name has no split but the others do; add train, validation or test to the name", part.Files[0])
		}
		if part.Split == "" {
			return []Part{{"train", paths}}, nil
		}
	}
	return parts, nil
}

func findInFolder(config, dir string) ([]Part, error) {
	var names []string
	err := filepath.WalkDir(dir, func(p string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		name, err := filepath.Rel(dir, p)
		names = append(names, filepath.ToSlash(name))
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("reading data set: %w", err)
	}
	readme, err := smallfile.Read(filepath.Join(dir, "README.md"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("reading data set: %w", err)
	}
	parts, err := Choose(config, names, readme)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", dir, err)
	}
	return Under(dir, parts), nil
}

// Under joins dir to the files of the splits.
func Under(dir string, parts []Part) []Part {
	var under []Part
	for _, part := range parts {
		p := Part{Split: part.Split}
		for _, name := range part.Files {
			p.Files = append(p.Files, filepath.Join(dir, filepath.FromSlash(name)))
		}
		under = append(under, p)
	}
	return under
}

// Choose finds the splits of a folder or hub repository, given its files as paths with slashes. The first rule that finds
// files applies; the rules are those of the Hub:
//
//  1. "configs" in the header of README.md: the files of configuration config; if config is "", of the default or only one.
//  2. CONFIG/SPLIT/0000.parquet, as in the Hub's conversion to Parquet.
//  3. data/SPLIT-00000-of-00001.*
//  4. Folders, then files, with a word such as train, validation or test in their names; other files are skipped.
//  5. All files are "train".
//
// Rules 4 and 5 use only the most common format; ties are resolved in the order parquet, jsonl, json, csv.
//
// Splits named val, valid or dev become "validation", and so on, unless another split has that name. Only the requested
// splits are returned, or all if splits is empty; files of other splits may be missing.
func Choose(config string, names []string, readme []byte, splits ...string) ([]Part, error) {
	parts, err := choose(config, names, readme, splits)
	for i, part := range parts {
		if name := usualSplit(part.Split); !slices.ContainsFunc(parts, func(p Part) bool { return p.Split == name }) {
			parts[i].Split = name
		}
	}
	if len(splits) > 0 {
		parts = slices.DeleteFunc(parts, func(p Part) bool { return !slices.Contains(splits, p.Split) })
	}
	if err == nil && len(parts) == 0 {
		err = fmt.Errorf("the data set has no split %s", words.List(splits))
	}
	return parts, err
}

func choose(config string, names []string, readme []byte, splits []string) ([]Part, error) {
	names = slices.DeleteFunc(slices.Clone(names), hidden)
	slices.Sort(names)
	configs, err := readConfigs(readme)
	if err != nil {
		return nil, err
	}
	if len(configs) > 0 {
		chosen, err := pickConfig(configs, config)
		if err != nil {
			return nil, err
		}
		if chosen.files != nil {
			return chosen.parts(names, splits)
		}
		if chosen.dir != "" {
			names = within(names, chosen.dir)
		}
	}
	names = slices.DeleteFunc(names, func(name string) bool { return formatOf(name) == "" })
	if len(configs) == 0 {
		if parts, err := converted(config, names); parts != nil || err != nil {
			return parts, err
		}
		if config != "" {
			names = within(names, config)
		}
	}
	if len(names) == 0 {
		return nil, fmt.Errorf("no data files%s; want .parquet, .jsonl, .json or .csv", ofConfig(config))
	}
	shard := func(name string) string {
		if m := shards.FindStringSubmatch(name); m != nil {
			return m[1]
		}
		return ""
	}
	if parts := named(divide(names, shard)); len(parts) > 0 {
		return parts, nil
	}
	names = commonest(names)
	if parts := named(divide(names, func(name string) string { return splitWord(strings.Split(path.Dir(name), "/")...) })); len(parts) > 0 {
		return parts, nil
	}
	if parts := named(divide(names, func(name string) string { return splitWord(path.Base(name)) })); len(parts) > 0 {
		return parts, nil
	}
	return []Part{{"train", names}}, nil
}

// FilesOf returns the files of a split; "val" means validation.
func FilesOf(parts []Part, split string) ([]string, error) {
	var names []string
	for _, part := range parts {
		if part.Split == split || part.Split == "validation" && split == Val {
			return part.Files, nil
		}
		names = append(names, part.Split)
	}
	return nil, fmt.Errorf("the data set has no split %s; choose from %s", words.Quote(split), words.List(names))
}

var (
	shards     = regexp.MustCompile(`^data/(\w+(?:\.\w+)*)-\d{5}-of-\d{5}[^/]*$`)
	hubParquet = regexp.MustCompile(`^([^/]+)/([^/]+)/\d{4}\.parquet$`)
)

// hidden reports whether a file is never data.
func hidden(name string) bool {
	for part := range strings.SplitSeq(name, "/") {
		if strings.HasPrefix(part, ".") || strings.HasPrefix(part, "__") {
			return true
		}
	}
	switch path.Base(name) {
	case "config.json", "dataset_info.json", "dataset_infos.json", "dataset_dict.json", "state.json":
		return true
	}
	// The datasets library keeps its caches in the same folder.
	return strings.HasPrefix(path.Base(name), "cache-") && path.Ext(name) == ".arrow"
}

// Readable reports whether Records can read a file of this name.
func Readable(name string) bool { return formatOf(filepath.ToSlash(name)) != "" }

// formatOf returns the extension that decides the format, or "" for an unknown one.
func formatOf(name string) string {
	name, unpack := unpacker(name)
	ext := strings.ToLower(path.Ext(name))
	if (ext == ".parquet" || ext == ".arrow") && unpack == nil || textReader(ext) != nil {
		return ext
	}
	return ""
}

// commonest keeps the files of the most common format.
func commonest(names []string) []string {
	count := map[string]int{}
	for _, name := range names {
		count[formatOf(name)]++
	}
	best := ""
	for _, ext := range []string{".parquet", ".jsonl", ".json", ".csv", ".arrow"} {
		if count[ext] > count[best] {
			best = ext
		}
	}
	return slices.DeleteFunc(names, func(name string) bool { return formatOf(name) != best })
}

func within(names []string, dir string) []string {
	dir = strings.Trim(path.Clean(dir), "/") + "/"
	return slices.DeleteFunc(names, func(name string) bool { return !strings.HasPrefix(name, dir) })
}

// converted returns the splits of the Hub's Parquet conversion, or nil if the files are not named that way.
func converted(config string, names []string) ([]Part, error) {
	configs := map[string][]string{}
	for _, name := range names {
		m := hubParquet.FindStringSubmatch(name)
		if m == nil {
			return nil, nil
		}
		configs[m[1]] = append(configs[m[1]], name)
	}
	if len(configs) == 0 {
		return nil, nil
	}
	var known []configuration
	for name := range configs {
		known = append(known, configuration{name: name})
	}
	slices.SortFunc(known, func(a, b configuration) int { return cmp.Compare(a.name, b.name) })
	chosen, err := pickConfig(known, config)
	if err != nil {
		return nil, err
	}
	return divide(configs[chosen.name], func(name string) string { return path.Base(path.Dir(name)) }), nil
}

// divide groups names by their split: train, validation, test, then others in byte order.
func divide(names []string, split func(string) string) []Part {
	var parts []Part
	for _, name := range names {
		s := split(name)
		i := slices.IndexFunc(parts, func(p Part) bool { return p.Split == s })
		if i < 0 {
			i = len(parts)
			parts = append(parts, Part{Split: s})
		}
		parts[i].Files = append(parts[i].Files, name)
	}
	rank := func(s string) int {
		if i := slices.Index([]string{"train", "validation", "test"}, s); i >= 0 {
			return i
		}
		return 3
	}
	slices.SortFunc(parts, func(a, b Part) int {
		return cmp.Or(cmp.Compare(rank(a.Split), rank(b.Split)), cmp.Compare(a.Split, b.Split))
	})
	return parts
}

// named drops the files without a split.
func named(parts []Part) []Part {
	return slices.DeleteFunc(parts, func(p Part) bool { return p.Split == "" })
}

// splitWords are the words in names that mean a split.
var splitWords = []struct {
	split string
	words []string
}{
	{"train", []string{"train", "training"}},
	{"validation", []string{"validation", "valid", "dev", "val"}},
	{"test", []string{"test", "testing", "eval", "evaluation"}},
}

// usualSplit is the standard name of a split: validation for val, valid and dev.
func usualSplit(name string) string {
	for _, s := range splitWords {
		if slices.Contains(s.words, strings.ToLower(name)) {
			return s.split
		}
	}
	return name
}

// splitWord returns the split whose word is in one of the names, between ends, dots, dashes, underscores, spaces or digits.
func splitWord(names ...string) string {
	for _, s := range splitWords {
		for _, name := range names {
			parts := strings.FieldsFunc(strings.ToLower(name), func(r rune) bool { return strings.ContainsRune("-._ 0123456789", r) })
			for _, word := range s.words {
				if slices.Contains(parts, word) {
					return s.split
				}
			}
		}
	}
	return ""
}
