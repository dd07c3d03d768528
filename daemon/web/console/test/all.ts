// SPDX-License-Identifier: Apache-2.0
import "./format_test";
import "./colours_test";
import "./chart_test";
import "./doctor_test";
import "./heat_test";
import "./map_test";
import "./planner_test";
