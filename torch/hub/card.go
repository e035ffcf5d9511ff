package hub

import (
	"fmt"
	"maps"
	"path"
	"regexp"
	"slices"
	"strings"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/lexer"
	"github.com/goccy/go-yaml/token"
)

// cardConfig is one of a dataset's configurations in the YAML of its README.md.
type cardConfig struct {
	name   string
	chosen bool                // it is the default one
	dir    string              // data_dir: where patterns and names begin; "" for the top
	splits map[string][]string // patterns of data_files by split
}

// maxConfigs bounds the YAML of configurations, and maxDepth its brackets: the parser's time grows with their
// square.
const maxConfigs, maxDepth = 1 << 20, 8

// configsOf cuts the key configs out of a README.md's YAML: datasets describe their columns there too, at length.
func configsOf(card []byte) (string, error) {
	head, found := strings.CutPrefix(strings.ReplaceAll(string(card), "\r\n", "\n"), "---\n")
	if !found {
		return "", nil
	}
	head, _, _ = strings.Cut(head, "\n---")
	var cut strings.Builder
	inside := false
	for line := range strings.Lines(head) {
		if !strings.ContainsAny(line[:1], " -#\n") {
			inside = strings.HasPrefix(line, "configs:")
		}
		if inside {
			cut.WriteString(line)
		}
	}
	if cut.Len() > maxConfigs {
		return "", fmt.Errorf("its configurations take %d bytes, more than %d", cut.Len(), maxConfigs)
	}
	depth := 0
	for _, t := range lexer.Tokenize(cut.String()) {
		switch t.Type {
		case token.SequenceStartType, token.MappingStartType:
			depth++
		case token.SequenceEndType, token.MappingEndType:
			depth--
		case token.AnchorType, token.AliasType:
			return "", fmt.Errorf("its configurations hold the YAML anchor or alias %.40q, which is not read; quote patterns", t.Value)
		}
		if depth > maxDepth {
			return "", fmt.Errorf("its configurations are nested more than %d deep", maxDepth)
		}
	}
	return cut.String(), nil
}

// parseCard reads the configurations of a README.md, none where it has no such YAML.
func parseCard(card []byte) ([]cardConfig, error) {
	text, err := configsOf(card)
	if err != nil {
		return nil, err
	}
	var list struct {
		Configs []struct {
			Name    string `yaml:"config_name"`
			Default bool   `yaml:"default"`
			Dir     string `yaml:"data_dir"`
			Files   any    `yaml:"data_files"`
		} `yaml:"configs"`
	}
	if err := yaml.Unmarshal([]byte(text), &list); err != nil {
		first, _, _ := strings.Cut(err.Error(), "\n")
		return nil, fmt.Errorf("its YAML: %s", first)
	}
	var configs []cardConfig
	for _, c := range list.Configs {
		config := cardConfig{name: c.Name, chosen: c.Default, splits: map[string][]string{}}
		if c.Dir != "" {
			config.dir = path.Clean(c.Dir)
		}
		for _, entry := range listOf(c.Files) {
			// A pattern alone is of the split train; others come with their split.
			split, patterns := "train", entry
			if m, ok := entry.(map[string]any); ok {
				split, _ = m["split"].(string)
				patterns = m["path"]
			}
			for _, item := range listOf(patterns) {
				pattern, ok := item.(string)
				if !ok || split == "" {
					return nil, fmt.Errorf("data_files of configuration %.120q: want patterns, or split and path", c.Name)
				}
				config.splits[split] = append(config.splits[split], path.Join(config.dir, pattern))
			}
		}
		configs = append(configs, config)
	}
	return configs, nil
}

// listOf is a list, or one of the value alone.
func listOf(value any) []any {
	if list, ok := value.([]any); ok || value == nil {
		return list
	}
	return []any{value}
}

// pick finds a configuration by name: "" is the default one, or the only one.
func pick(configs []cardConfig, name string) (cardConfig, error) {
	var names []string
	for _, c := range configs {
		if name != "" && c.name == name || name == "" && (c.chosen || c.name == "default" || len(configs) == 1) {
			return c, nil
		}
		names = append(names, c.name)
	}
	if name == "" {
		return cardConfig{}, fmt.Errorf("name one of the configurations %s", strings.Join(names, ", "))
	}
	return cardConfig{}, fmt.Errorf("there is no configuration %s; there are %s", name, strings.Join(names, ", "))
}

// files are those of sorted names that the split's patterns match, pattern by pattern.
func (c cardConfig) files(names []string, split string) ([]string, error) {
	patterns, ok := c.splits[split]
	if !ok {
		return nil, fmt.Errorf("configuration %s has no split %s; it has %s", c.name, split, strings.Join(slices.Sorted(maps.Keys(c.splits)), ", "))
	}
	var files []string
	for _, text := range patterns {
		pattern, err := regexp.Compile(glob(text))
		if err != nil {
			return nil, fmt.Errorf("%s: data_files %.120q is no pattern", cardFile, text)
		}
		found := slices.DeleteFunc(slices.Clone(names), func(name string) bool { return !pattern.MatchString(name) })
		if len(found) == 0 {
			return nil, noData{fmt.Errorf("no file matches %s of split %s in %s", text, split, cardFile)}
		}
		for _, name := range found {
			if !dataPattern.MatchString(name) {
				return nil, noData{fmt.Errorf("%s is in none of the formats parquet, jsonl, json and csv", name)}
			}
			if !slices.Contains(files, name) {
				files = append(files, name)
			}
		}
	}
	return files, nil
}

var globParts = strings.NewReplacer(`\*\*/`, "(.*/)?", `\*\*`, ".*", `\*`, "[^/]*", `\?`, "[^/]", `\[!`, "[^", `\[`, "[", `\]`, "]")

// glob is the regular expression of a pattern in which * stays within a folder and ** does not.
func glob(pattern string) string {
	return "^" + globParts.Replace(regexp.QuoteMeta(pattern)) + "$"
}
