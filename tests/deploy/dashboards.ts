// What a dashboard of deploy/grafana is to be, in the types of @grafana/schema. test_dashboards.py puts the JSON of each
// behind this, as a literal, so that tsc finds wrong types and unknown fields. What the schema leaves open is narrowed to
// what the dashboards use: options and fields by the kind of panel, and the query of the Prometheus data source, whose
// types are not in that package.
import type { Dashboard, DataQuery, DataSourceRef, Panel, RowPanel, VariableModel } from '@grafana/schema';
import type { Options as Stat } from '@grafana/schema/dist/esm/raw/composable/stat/panelcfg/x/StatPanelCfg_types.gen';
import type {
  FieldConfig as TableFields, Options as Table,
} from '@grafana/schema/dist/esm/raw/composable/table/panelcfg/x/TablePanelCfg_types.gen';
import type {
  FieldConfig as TimeSeriesFields, Options as TimeSeries,
} from '@grafana/schema/dist/esm/raw/composable/timeseries/panelcfg/x/TimeSeriesPanelCfg_types.gen';

// JSON has the values of the schema's enums of strings, not their names.
type Json<T> = T extends string ? `${T}`
  : T extends number | boolean | null | undefined ? T
  : T extends (infer Item)[] ? Json<Item>[]
  : T extends object ? { [Key in keyof T]: Json<T[Key]> } : T;

interface Source extends DataSourceRef { type: 'prometheus'; uid: '${datasource}' }
interface PrometheusQuery extends Omit<DataQuery, 'datasource'> {
  datasource: Source;
  expr: string;
  legendFormat?: string;
  format?: 'time_series' | 'table' | 'heatmap';
  instant?: boolean;
  range?: boolean;
}
interface Annotation {
  name: string; enable: boolean; iconColor: string; datasource: Source; target: Omit<PrometheusQuery, 'datasource'>;
}

type Fields<Custom> = Omit<Json<NonNullable<NonNullable<Panel['fieldConfig']>['defaults']>>, 'custom'> & { custom?: Json<Custom> };
type Drawn<Kind extends string, Options, Custom> =
  Omit<Json<Panel>, 'type' | 'datasource' | 'targets' | 'options' | 'fieldConfig'> & {
    type: Kind; title: string; description: string; datasource: Source; targets: PrometheusQuery[]; options: Json<Options>;
    fieldConfig: { defaults: Fields<Custom>; overrides: Json<NonNullable<Panel['fieldConfig']>['overrides']> };
  };
type Variable = Omit<Json<VariableModel>, 'datasource'> & { datasource?: Source };

export type Shipped = Omit<Json<Dashboard>, 'panels' | 'templating' | 'annotations'> & {
  uid: string;
  panels: (Json<RowPanel>
    | Drawn<'timeseries', Omit<TimeSeries, 'timezone'>, TimeSeriesFields>
    | Drawn<'stat', Omit<Stat, 'text'>, never>
    | Drawn<'table', Table, Partial<TableFields>>)[];
  templating: { list: Variable[] };
  annotations: { list: Annotation[] };
};
