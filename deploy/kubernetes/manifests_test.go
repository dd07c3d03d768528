// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"fmt"
	"os"
	"reflect"
	"strings"
	"testing"
	"text/template"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer/json"
	"k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/yaml"
)

func documents(t *testing.T, text []byte) [][]byte {
	t.Helper()
	var found [][]byte
	for _, one := range strings.Split(string(text), "\n---\n") {
		if strings.TrimSpace(one) != "" {
			found = append(found, []byte(one))
		}
	}
	return found
}

// strict refuses a key that the API does not have.
func strict(t *testing.T, file string, document []byte) runtime.Object {
	t.Helper()
	decoder := json.NewSerializerWithOptions(json.DefaultMetaFactory, scheme.Scheme, scheme.Scheme, json.SerializerOptions{Yaml: true, Strict: true})
	object, _, err := decoder.Decode(document, nil, nil)
	if err != nil {
		t.Fatalf("%s: %v\n%s", file, err, document)
	}
	return object
}

func TestManifestsAndExamples(t *testing.T) {
	for _, file := range []string{"manifests/terrace-dra.yaml", "examples/pod.yaml", "examples/shared-claim.yaml"} {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, document := range documents(t, text) {
			claim, is := strict(t, file, document).(*resourceapi.ResourceClaim)
			if !is {
				continue
			}
			for _, config := range claim.Spec.Devices.Config {
				if _, err := readParameters(config.Opaque.Parameters.Raw); err != nil {
					t.Errorf("%s: %v", file, err)
				}
			}
		}
	}
}

// The chart, with the values that it has, is the manifest. It uses no more of Helm than text/template and quote.
func TestChartIsTheManifest(t *testing.T) {
	var values map[string]any
	text, err := os.ReadFile("chart/values.yaml")
	if err != nil || yaml.Unmarshal(text, &values) != nil {
		t.Fatal(err)
	}
	chart, err := os.ReadFile("chart/templates/terrace-dra.yaml")
	if err != nil {
		t.Fatal(err)
	}
	functions := template.FuncMap{"quote": func(value any) string { return fmt.Sprintf("%q", value) }}
	made, err := template.New("chart").Option("missingkey=error").Funcs(functions).Parse(string(chart))
	if err != nil {
		t.Fatal(err)
	}
	var rendered bytes.Buffer
	if err := made.Execute(&rendered, map[string]any{"Values": values}); err != nil {
		t.Fatal(err)
	}
	manifest, err := os.ReadFile("manifests/terrace-dra.yaml")
	if err != nil {
		t.Fatal(err)
	}
	want, got := documents(t, manifest), documents(t, rendered.Bytes())
	if len(want) != len(got) {
		t.Fatalf("%d objects, and %d in the chart", len(want), len(got))
	}
	for at := range want {
		if a, b := strict(t, "manifest", want[at]), strict(t, "chart", got[at]); !reflect.DeepEqual(a, b) {
			t.Errorf("they differ:\n%s\n%s", want[at], got[at])
		}
	}
}
