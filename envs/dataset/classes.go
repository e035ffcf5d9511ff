package dataset

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
)

// featuresKey is the key under which the datasets library keeps the types of columns in a file.
const featuresKey = "huggingface"

// classNames returns the names of the classes of a column that holds their numbers, as the datasets library writes them into
// Parquet and Arrow files; nil if there are none. A file that cannot be read has none: reading its rows tells why.
func classNames(path, column string) []string {
	read := map[string]func(*os.File) string{".parquet": parquetFeatures, ".arrow": arrowFeatures}[strings.ToLower(filepath.Ext(path))]
	if read == nil {
		return nil
	}
	f, err := os.Open(path)
	if err != nil {
		return nil
	}
	defer f.Close()
	var described struct {
		Info struct {
			Features map[string]json.RawMessage `json:"features"`
		} `json:"info"`
	}
	var feature struct {
		Type  string   `json:"_type"`
		Names []string `json:"names"`
	}
	if json.Unmarshal([]byte(read(f)), &described) != nil || json.Unmarshal(described.Info.Features[column], &feature) != nil || feature.Type != "ClassLabel" {
		return nil
	}
	return feature.Names
}

func parquetFeatures(f *os.File) string {
	info, err := f.Stat()
	if err != nil {
		return ""
	}
	meta, err := checkFooter(f, info.Size())
	if err != nil {
		return ""
	}
	for _, pair := range meta.KeyValueMetadata {
		if pair.Key == featuresKey {
			return pair.Value
		}
	}
	return ""
}

func arrowFeatures(f *os.File) string {
	info, err := f.Stat()
	if err != nil {
		return ""
	}
	r, err := openArrow(&checkedArrow{in: f, left: info.Size()})
	if err != nil {
		return ""
	}
	defer r.Release()
	metadata := r.Schema().Metadata()
	if at := metadata.FindKey(featuresKey); at >= 0 {
		return metadata.Values()[at]
	}
	return ""
}
